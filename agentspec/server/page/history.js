// What came over time: counters become columns of a few seconds each.

import { acceptedOf } from "./sources.js";

const SMOOTH = 8; // columns; a rate over fewer drafts jumps about

const nothing = () => ({ tokens: 0, sources: {} });

function add(to, { tokens, sources }, share = 1) {
  to.tokens += tokens * share;
  for (const [name, { drafted, accepted }] of Object.entries(sources)) {
    const at = (to.sources[name] ??= { drafted: 0, accepted: 0 });
    at.drafted += drafted * share;
    at.accepted += accepted * share;
  }
  return to;
}

// everything since the server started, what still runs included
export const sum = (live) => live.running.reduce((all, answer) => add(all, answer), add(nothing(), live.totals));

function difference(now, before) {
  const sources = {};
  for (const [name, { drafted, accepted }] of Object.entries(now.sources)) {
    const was = before.sources[name] ?? { drafted: 0, accepted: 0 };
    sources[name] = { drafted: drafted - was.drafted, accepted: accepted - was.accepted };
  }
  return { tokens: now.tokens - before.tokens, sources };
}

export class History {
  #columns = new Map();
  #before = null;
  #at = 0;

  constructor(seconds = 2, length = 120) {
    this.seconds = seconds;
    this.length = length;
  }

  add(live) {
    const now = sum(live);
    if (this.#before === null) {
      // the page came later: the last answers say when their tokens came
      for (const answer of [...live.recent, ...live.running]) {
        const first = answer.first_token_seconds;
        if (first !== null) this.#spread(answer, answer.at + first, answer.at + answer.seconds);
      }
    } else {
      const restarted = now.tokens < this.#before.tokens;
      this.#spread(difference(now, restarted ? nothing() : this.#before), this.#at, live.at);
    }
    this.#before = now;
    this.#at = live.at;
    for (const index of this.#columns.keys()) {
      if (index <= this.#index(live.at) - this.length) this.#columns.delete(index);
    }
  }

  // the columns up to now, oldest first: {tokens, own, sources: {name: {drafted, accepted}}}
  columns() {
    const last = this.#index(this.#at);
    return Array.from({ length: this.length }, (_, i) => {
      const column = this.#columns.get(last - this.length + 1 + i) ?? nothing();
      return { ...column, own: Math.max(0, column.tokens - acceptedOf(column.sources)) };
    });
  }

  // the acceptance rate of one source around each column; null where it drafted nothing
  rates(name) {
    const columns = this.columns();
    return columns.map((_, i) => {
      let drafted = 0;
      let accepted = 0;
      for (const { sources } of columns.slice(Math.max(0, i - SMOOTH + 1), i + 1)) {
        drafted += sources[name]?.drafted ?? 0;
        accepted += sources[name]?.accepted ?? 0;
      }
      return drafted >= 1 ? accepted / drafted : null;
    });
  }

  #index(at) {
    return Math.floor(at / this.seconds);
  }

  #spread(counts, from, to) {
    if (!counts.tokens && !Object.keys(counts.sources).length) return;
    const oldest = Math.max(from, to - this.length * this.seconds);
    const span = to - from;
    for (let index = this.#index(oldest); index <= this.#index(to); index++) {
      const begin = Math.max(from, index * this.seconds);
      const end = Math.min(to, (index + 1) * this.seconds);
      const share = span > 0 ? Math.max(0, end - begin) / span : 1;
      if (!this.#columns.has(index)) this.#columns.set(index, nothing());
      add(this.#columns.get(index), counts, share);
    }
  }
}
