"""The style sheet of a bench page: light and dark, phone and desk, paper."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fbfbf8; --card: #ffffff; --ink: #1c1e22; --soft: #5d616a; --line: #dddcd5;
  --faint: #efeee9; --accent: #1f5fb8; --loss: #b23c0c; --own: #a9adb5; --other: #c3c6cc;
  --rejected: #e3e0da;
  --s1: #2a6cbd; --s2: #0e8568; --s3: #8455b4; --s4: #ad7414; --s5: #2f94bd; --s6: #b2437a;
  --s7: #6d727b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #131519; --card: #1a1d22; --ink: #e7e7e2; --soft: #9ea2ab; --line: #30343b;
    --faint: #22262c; --accent: #7fb1f7; --loss: #f28c5e; --own: #777c86; --other: #555a63;
    --rejected: #343941;
    --s1: #6aa7f2; --s2: #42c3a0; --s3: #b792e8; --s4: #e0af4d; --s5: #6cc6ea; --s6: #e88bb9;
    --s7: #8e939d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.015em; }
h2 { font-size: 1.2rem; margin: 0 0 .3rem; letter-spacing: -.01em; }
h3 { font-size: 1rem; margin: 1.6rem 0 .2rem; }
p { margin: .2rem 0 .9rem; max-width: 46rem; }
small, .soft, figcaption { color: var(--soft); }
small { font-size: .8rem; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { font-size: .92em; overflow-wrap: anywhere; }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.2rem 1.3rem 1.3rem; margin-top: 1.2rem;
}
section section { border: 0; padding: 0; margin: 0; }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem;
  margin: 1.4rem 0 0;
}
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.65rem; line-height: 1.25; font-weight: 650;
  font-variant-numeric: tabular-nums; letter-spacing: -.02em; }
.tile span { display: block; font-size: .85rem; font-weight: 600; }
.tile small { display: block; line-height: 1.35; }
.gain { color: var(--accent); }
.loss { color: var(--loss); }
.half { display: grid; grid-template-columns: 1fr 1fr; gap: 0 2.2rem; }
.rows { list-style: none; margin: .6rem 0 0; padding: 0; }
.rows li { display: grid; grid-template-columns: 11rem 1fr 7.4rem; gap: 0 1rem;
  align-items: center; }
.half .rows li { grid-template-columns: 6.6rem 1fr 6.6rem; }
.ways li { grid-template-columns: 17rem 1fr 3.6rem; border-top: 1px solid var(--faint);
  padding: .25rem 0; }
.name { line-height: 1.2; overflow-wrap: anywhere; }
.name span { font-size: .92rem; }
.turns .name small { margin-left: .5rem; }
.ways .name small, .shares .name small { display: block; }
.cells { text-align: right; white-space: nowrap; }
.number { display: inline-block; min-width: 3.4rem; text-align: right;
  font-variant-numeric: tabular-nums; font-weight: 650; }
.number.other { font-weight: 450; }
.number.head { font-size: .8rem; font-weight: 450; color: var(--soft); }
.number.wide { min-width: 6.4rem; }
.number.wide small { display: inline-block; min-width: 3.4rem; margin-left: .3rem;
  font-weight: 450; }
svg { display: block; overflow: visible; }
.frame { padding: 1.6rem .6rem 0 2.9rem; }
.grid { stroke: var(--line); stroke-width: 1; }
.even { stroke: var(--soft); stroke-width: 1.4; stroke-dasharray: 4 3; }
.pair { stroke: var(--soft); stroke-width: 1.4; opacity: .65; }
.pair.other { opacity: .45; }
.prompt { fill: var(--soft); opacity: .7; }
.interval { stroke: var(--soft); stroke-width: 3; opacity: .55; }
circle.cold, circle.peer, circle.warm { stroke: var(--card); stroke-width: 1.5; }
circle.gain { fill: var(--accent); }
circle.loss { fill: var(--loss); }
circle.warm, circle.peer { fill: var(--card); stroke-width: 2; }
circle.warm.gain, circle.peer.gain { stroke: var(--accent); }
circle.warm.loss, circle.peer.loss { stroke: var(--loss); }
.tick { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.track { fill: var(--faint); }
.cost, .came { fill: none; stroke-width: 2; stroke-linejoin: round; }
.cost { stroke: var(--loss); }
.came.plain { stroke: var(--own); }
.came.fast { stroke: var(--accent); stroke-width: 2.4; }
.measured { fill: var(--card); stroke: var(--loss); stroke-width: 1.6; }
.tokens { fill: var(--accent); fill-opacity: .75; }
.own { fill: var(--own); }
.own.alt { fill: var(--other); }
.lead { fill: var(--line); }
.rejected { fill: var(--rejected); }
.s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); } .s4 { --c: var(--s4); }
.s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
.bar { fill: var(--c); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .5rem 0 0; padding: 0;
  list-style: none; font-size: .85rem; color: var(--soft); }
.legend li { display: flex; align-items: center; gap: .4rem; }
.legend svg { flex: none; width: 18px; }
.answer { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .8rem; line-height: 1.5;
  background: var(--faint); border-radius: 8px; padding: .8rem 1rem; margin: .9rem 0 0;
  max-height: 24rem; overflow: auto; }
.t { background: color-mix(in srgb, var(--c) 22%, transparent);
  border-bottom: 1.5px solid var(--c); }
.scroll { overflow-x: auto; margin-top: .9rem; }
table { border-collapse: collapse; width: 100%; font-size: .86rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap;
  border-top: 1px solid var(--faint); }
thead th { border-top: 0; color: var(--soft); font-weight: 500; vertical-align: bottom;
  white-space: normal; line-height: 1.25; }
th:first-child, td:first-child { padding-left: 0; }
.left { text-align: left; }
dl { display: grid; grid-template-columns: 10rem 1fr; gap: .3rem 1rem; margin: .6rem 0 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.command { display: block; background: var(--faint); border-radius: 8px; padding: .7rem .9rem;
  margin-top: .3rem; white-space: pre-wrap; }
ul.plain { margin: .4rem 0 0; padding-left: 1.1rem; max-width: 48rem; }
ul.plain li { margin-top: .3rem; }
footer { margin-top: 1.4rem; color: var(--soft); font-size: .85rem; }
@media (max-width: 760px) {
  main { padding: 1.4rem .8rem 2.5rem; }
  section { padding: 1rem .9rem 1.1rem; }
  .half { grid-template-columns: 1fr; }
  .tiles { grid-template-columns: 1fr 1fr; gap: .6rem; }
  .tile b { font-size: 1.35rem; }
  .tile:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .rows li, .half .rows li, .ways li { grid-template-columns: 1fr auto; }
  .rows li { padding-top: .35rem; }
  .picture { grid-column: 1 / -1; grid-row: 2; padding: 0 .5rem; }
  .frame { padding-right: .2rem; padding-left: 2.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #ffffff; --card: #ffffff; --ink: #000000; --soft: #4a4d55; --line: #cfcfcf;
    --faint: #f1f1f1; --accent: #1f5fb8; --loss: #b23c0c; --own: #a9adb5; --other: #c3c6cc;
    --rejected: #dedede;
    --s1: #2a6cbd; --s2: #0e8568; --s3: #8455b4; --s4: #ad7414; --s5: #2f94bd; --s6: #b2437a;
    --s7: #6d727b;
  }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 11pt; }
  main { max-width: none; padding: 0; }
  section { border: 0; padding: 0; margin-top: 1.6rem; }
  section, li, tr, .tile { break-inside: avoid; }
  section.long { break-inside: auto; }
  .answer { max-height: none; }
  .scroll { overflow: visible; }
  table { font-size: 8.5pt; }
  th, td { padding: .2rem .35rem; }
  .tiles { grid-template-columns: repeat(5, 1fr); gap: .4rem; }
  .tile { padding: .5rem .6rem; }
  .tile:last-child:nth-child(odd) { grid-column: auto; }
  .tile b { font-size: 1.2rem; }
}
"""
