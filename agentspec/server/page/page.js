// Puts the feed on the page.

import { Answers, stateText } from "./answers.js";
import { Chart, trend } from "./chart.js";
import { $, bar, keyed, make, put, say, svg } from "./dom.js";
import { Feed } from "./feed.js";
import { against, client, count, duration, percent, speed, times } from "./format.js";
import { History, sum } from "./history.js";
import { acceptedOf, label, ordered, OWN, plainOf, style } from "./sources.js";

const history = new History();
const chart = new Chart($("chart"), $("reading"), history);
const feed = new Feed({ live, pieces: (added) => answers.pieces(added), state });
const answers = new Answers((path) => feed.get(path));
let last = null;

function live(now) {
  last = now;
  history.add(now);
  if (document.hidden) return;
  draw();
}

function draw() {
  const now = last;
  $("board").hidden = false;
  say($("model"), `${now.model} · context ${count(now.n_ctx)}`);
  document.title = now.queue.running ? `agentspec · ${now.queue.running} running` : "agentspec";
  tiles(now);
  const asked = now.totals.requests + now.running.length + now.recent.length > 0;
  $("empty").hidden = asked;
  $("drafts").hidden = $("running").hidden = !asked;
  requests(now);
  chart.draw(plainOf(everything(now)));
  sources(now);
  answers.live(now);
}

function state(name, text) {
  put($("state"), "data-state", name);
  say($("state"), text);
  $("key").hidden = name !== "key";
  $("forget").hidden = !feed.hasKey || name === "key";
  document.body.classList.toggle("lost", name === "lost");
  if (name === "key") {
    $("board").hidden = true;
    say($("key-problem"), feed.hasKey ? text : "");
    $("key-field").focus();
  }
}

// everything since the server started, what still runs included; speeds are those of what has ended
function everything({ totals, running }) {
  const all = { ...totals };
  for (const answer of running) {
    for (const name of ["tokens", "passes", "drafted", "accepted", "prompt_tokens", "cached_tokens"]) {
      all[name] += answer[name];
    }
  }
  return all;
}

// of answers that take turns: what all have written, in the time of their own passes
function together(answers, fast = (answer) => answer.tokens_per_second) {
  const spent = answers.reduce((all, answer) => all + answer.tokens / fast(answer), 0);
  return spent ? answers.reduce((all, answer) => all + answer.tokens, 0) / spent : 0;
}

const NAMES = { slower: "slower than plain", faster: "speed-up", even: "as fast as plain", unknown: "speed-up" };

function tiles(now) {
  const { totals, running, recent, kv, slots, queue } = now;
  const begun = running.filter((answer) => answer.state === "writing" && answer.tokens_per_second > 0);
  const newest = recent.findLast((answer) => answer.tokens > 0);
  const shown = begun.length ? begun : newest ? [newest] : [];
  const all = everything(now);
  // the answers without drafts go as fast as plain decoding, whatever the estimate says
  const drafted = shown.filter((answer) => answer.drafted > 0);
  const fast = together(drafted);
  // each answer has an estimate of its own: what it gained is not above its tokens per pass
  const ever = plainOf(all);
  const plain = together(drafted, plainOf) || ever;
  const verdict = against(fast, plain);
  tile("fast", speed(together(shown)), begun.length ? "tok/s, now" : newest ? "tok/s, last answer" : "tok/s");
  say($("fast-name"), fast && verdict !== "slower" ? "accelerated" : fast ? "with drafts" : "speed");
  const missing = all.drafted || !all.tokens ? "not measured yet" : "nothing drafted yet";
  tile("plain", plain ? `≈ ${speed(plain)}` : "–", plain ? "tok/s, estimate" : missing);
  const overall = totals.drafted > 0 ? totals.tokens_per_second : 0;
  const none = shown.length && !fast ? "nothing drafted" : "against plain decoding";
  tile(
    "gain",
    fast && plain ? `≈ ${times(fast, plain)}` : "–",
    overall && ever ? `since start ≈ ${times(overall, ever)}` : none,
  );
  say($("gain-name"), NAMES[verdict]);
  for (const id of ["fast", "gain"]) put($(id), "data-gain", verdict);
  put($("gain-note"), "data-gain", against(overall, ever));
  tile("length", all.passes ? (all.tokens / all.passes).toFixed(2) : "–", `${count(all.tokens)} in ${count(all.passes)} passes`);
  tile("rate", percent(all.accepted, all.drafted), `${count(all.accepted)} of ${count(all.drafted)}`);
  tile(
    "reuse",
    percent(all.cached_tokens, all.prompt_tokens),
    `${count(all.cached_tokens)} of ${count(all.prompt_tokens)}`,
  );
  tile("kv", percent(kv.used, kv.size), `${count(kv.used)} of ${count(kv.size)}`);
  bar(
    $("kv-bar"),
    slots.map(({ id, tokens, busy }) => [
      busy ? "busy" : "idle",
      tokens / kv.size,
      `sequence ${id}: ${count(tokens)} cells${busy ? ", busy" : ""}`,
    ]),
  );
  tile("queue", `${queue.running}/${queue.parallel}`, `run, ${count(queue.waiting)} of ${count(queue.most)} wait`);
}

function tile(id, big, note) {
  say($(id), big);
  say($(`${id}-note`), note);
}

function requests({ running }) {
  const waiting = running.filter((answer) => answer.state === "waiting").length;
  say($("requests-count"), running.length ? `${running.length}${waiting ? `, ${waiting} waiting` : ""}` : "");
  $("requests").hidden = running.length === 0;
  $("requests-none").hidden = running.length > 0;
  keyed(
    $("requests").tBodies[0],
    running,
    (answer) => `${answer.at}`,
    () => {
      const row = make("tr", "", "", { role: "row" });
      for (const [name, title] of [
        ["who", "client"],
        ["how", "state"],
        ["prompt", "prompt read"],
        ["number", "tokens"],
        ["number", "tok/s"],
        ["number", "plain, est."],
        ["number", "time"],
      ]) {
        row.append(make("td", name, "", { role: "cell", "data-title": title }));
      }
      const progress = make("span", "bar", "", { role: "progressbar", "aria-valuemin": 0, "aria-label": "prompt tokens read" });
      row.children[2].append(progress, make("span", "faint"));
      return row;
    },
    (row, answer) => {
      const [who, how, prompt, tokens, fast, plain, time] = row.children;
      const { prompt_tokens: total, prompt_read: read, cached_tokens: cached } = answer;
      put(row, "data-state", answer.state);
      say(who, client(answer.client));
      if (who.title !== answer.client) who.title = answer.client;
      say(how, `${stateText(answer.state)} · ${answer.api}`);
      const [progress, note] = prompt.children;
      put(progress, "aria-valuemax", total);
      put(progress, "aria-valuenow", read);
      bar(progress, [
        ["reused", total ? Math.min(cached, read) / total : 0, `${count(cached)} reused`],
        ["read", total ? Math.max(0, read - cached) / total : 0, `${count(Math.max(0, read - cached))} read`],
      ]);
      say(note, total ? `${count(read)} of ${count(total)}${cached ? `, ${count(cached)} reused` : ""}` : "");
      say(tokens, count(answer.tokens));
      const estimate = plainOf(answer);
      say(fast, speed(answer.tokens_per_second));
      put(fast, "data-gain", against(answer.tokens_per_second, estimate));
      say(plain, estimate ? `≈ ${speed(estimate)}` : "–");
      say(time, duration(answer.seconds));
    },
  );
}

function sources(now) {
  const all = sum(now);
  const own = Math.max(0, all.tokens - acceptedOf(all.sources));
  const counts = { ...all.sources, [OWN]: { drafted: 0, accepted: own } };
  const names = [...ordered(Object.keys(all.sources)), OWN];
  $("sources").hidden = all.tokens === 0;
  keyed(
    $("sources").tBodies[0],
    names,
    (name) => name,
    (name) => {
      const row = make("tr", style(name), "", { role: "row" });
      const head = make("th", "", "", { role: "rowheader", scope: "row" });
      head.append(make("i"), name === OWN ? "target's own" : label(name));
      row.append(head);
      for (const kind of ["number", "number", "number", "trend"]) row.append(make("td", kind, "", { role: "cell" }));
      const drawing = svg("svg", { viewBox: `0 0 ${history.length} 20`, preserveAspectRatio: "none", "aria-hidden": "true" });
      drawing.append(svg("path"));
      row.lastChild.append(drawing);
      return row;
    },
    (row, name) => {
      const { drafted, accepted } = counts[name];
      say(row.children[1], count(accepted));
      say(row.children[2], name === OWN ? "–" : count(drafted));
      say(row.children[3], percent(accepted, drafted));
      trend(row.children[4].firstChild.firstChild, history.rates(name));
    },
  );
}

function prepare() {
  const url = new URL("v1/chat/completions", document.baseURI).href;
  const key = feed.hasKey ? `  -H "Authorization: Bearer $AGENTSPEC_API_KEY" \\\n` : "";
  const body = '{"stream": true, "messages": [{"role": "user", "content": "Write a haiku about caches."}]}';
  const base = new URL(".", document.baseURI).href.replace(/\/$/, "");
  say($("print-config"), `agentspec print-config opencode --url ${base}`);
  say($("curl"), `curl -N ${url} \\\n${key}  -H "Content-Type: application/json" \\\n  -d '${body}'`);
}

$("key").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("key-field").value.trim();
  // what no header can carry would fail as if the server were away
  if (!/^[\x21-\x7e]+$/.test(key)) return say($("key-problem"), "a key is printable ASCII without spaces");
  $("key-field").value = "";
  feed.use(key);
  prepare();
});
$("forget").addEventListener("click", () => feed.forget());
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText($(button.dataset.copy).textContent);
    say(button, "copied");
    setTimeout(() => say(button, "copy"), 1500);
  });
}
document.addEventListener("visibilitychange", () => last && !document.hidden && draw());
prepare();
feed.run();
