// The last answers: a list, and the text of one with each token marked by who proposed it.

import { $, bar, keyed, make, put, say } from "./dom.js";
import { against, client, clock, count, duration, percent, speed, times } from "./format.js";
import { label, OWN, parts, plainOf, style } from "./sources.js";

const ENDS = {
  stop: "done",
  length: "cut off",
  tool_calls: "calls a tool",
  cancelled: "cancelled",
  failed: "failed",
  content_filter: "stopped",
};

const TITLES = {
  slower: "slower than plain decoding would be, by the estimate",
  faster: "faster than plain decoding would be, by the estimate",
  even: "about as fast as plain decoding would be, by the estimate",
  unknown: "no comparison: nothing was drafted, or nothing is measured yet",
};

export const stateText = (state) => ENDS[state] ?? state;

// The texts that came so far, by id.
class Texts {
  #known = new Map(); // id -> {pieces, whole, cut, gone}
  #asked = new Set();
  #get;

  constructor(get) {
    this.#get = get;
  }

  take({ id, from, pieces }) {
    const text = this.#known.get(id) ?? { pieces: [], whole: false, cut: false };
    if (from > text.pieces.length) return; // a part was missed: it is fetched when it is shown
    text.pieces.splice(from, Infinity, ...pieces);
    this.#known.set(id, text);
  }

  of(id) {
    return this.#known.get(id);
  }

  async fetch(id) {
    if (this.#asked.has(id)) return;
    this.#asked.add(id);
    try {
      const found = await this.#get(`api/answers/${encodeURIComponent(id)}`);
      const text = found ?? { pieces: this.#known.get(id)?.pieces ?? [], cut: false };
      this.#known.set(id, { ...text, whole: true, gone: found === null });
    } catch {
      // the connection is lost: it is asked for again once there is one
    } finally {
      this.#asked.delete(id);
    }
  }

  keep(ids) {
    for (const id of this.#known.keys()) if (!ids.has(id)) this.#known.delete(id);
  }
}

export class Answers {
  #texts;
  #answers = [];
  #pinned = null; // the id that the user chose; null: the newest
  #only = null;
  #shown = null;
  #drawn = [];

  constructor(get) {
    this.#texts = new Texts(get);
    $("follow").addEventListener("click", () => this.#choose(null));
    $("list").addEventListener("keydown", (event) => {
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const next = step && event.target.closest("li")?.[step];
      if (!step) return;
      event.preventDefault();
      next?.querySelector("button").focus();
    });
  }

  live({ running, recent }) {
    this.#answers = [...running, ...recent].filter((answer) => answer.id).reverse();
    this.#answers.sort((a, b) => b.at - a.at);
    this.#texts.keep(new Set(this.#answers.map((answer) => answer.id)));
    if (!this.#answers.some((answer) => answer.id === this.#pinned)) this.#pinned = null;
    this.#draw();
  }

  pieces(added) {
    this.#texts.take(added);
    if (added.id === this.#shown) this.#drawText();
  }

  get #current() {
    const written = this.#answers.find((answer) => answer.tokens > 0) ?? this.#answers[0];
    return this.#pinned ?? written?.id ?? null;
  }

  #choose(id) {
    this.#pinned = id;
    this.#draw();
  }

  #draw() {
    const current = this.#current;
    put($("follow"), "aria-pressed", this.#pinned === null);
    $("answers").hidden = current === null;
    keyed(
      $("list"),
      this.#answers,
      (answer) => answer.id,
      (answer) => this.#row(answer.id),
      (row, answer) => this.#fill(row, answer, answer.id === current),
    );
    if (this.#shown !== current) {
      this.#shown = current;
      this.#only = null;
      this.#drawn = [];
      $("text").replaceChildren();
      $("text").scrollTop = 0;
    }
    this.#drawLegend();
    this.#drawText();
  }

  #row(id) {
    const row = make("li");
    const button = make("button", "answer", "", { type: "button" });
    for (const name of ["when faint", "who", "how", "share bar", "number", "gain number"]) {
      button.append(make("span", name), " "); // the space is for those who hear it
    }
    button.addEventListener("click", () => this.#choose(id));
    row.append(button);
    return row;
  }

  #fill(row, answer, current) {
    const button = row.firstChild;
    const [when, who, how, share, tokens, gain] = button.children;
    put(button, "aria-pressed", current);
    put(button, "data-state", answer.state);
    say(when, clock(answer.at));
    say(who, client(answer.client));
    if (who.title !== answer.client) who.title = answer.client;
    say(how, stateText(answer.state));
    say(tokens, `${count(answer.tokens)} tok`);
    const plain = plainOf(answer);
    const verdict = against(answer.tokens_per_second, plain);
    say(gain, times(answer.tokens_per_second, plain));
    put(gain, "data-gain", verdict);
    put(gain, "title", TITLES[verdict]);
    bar(share, parts(answer).map(([n, k]) => [style(n), k / answer.tokens, `${label(n)}: ${count(k)}`]));
  }

  #drawLegend() {
    const answer = this.#answers.find(({ id }) => id === this.#shown);
    const found = answer ? parts(answer) : [];
    keyed(
      $("legend"),
      found,
      ([name]) => name,
      ([name]) => {
        const button = make("button", style(name), "", { type: "button" });
        button.append(make("i"), make("span"), " ", make("span", "faint"), " ", make("span", "faint rate"));
        button.addEventListener("click", () => {
          this.#only = this.#only === name ? null : name;
          this.#drawLegend();
          this.#drawText();
        });
        return button;
      },
      (button, [name, kept]) => {
        const drafted = answer.sources[name]?.drafted;
        put(button, "aria-pressed", this.#only === name);
        say(button.children[1], name === OWN ? "target's own" : label(name));
        say(button.children[2], drafted ? `${count(kept)} of ${count(drafted)}` : count(kept));
        say(button.children[3], drafted ? percent(kept, drafted) : "");
      },
    );
    if (!answer) return;
    const plain = plainOf(answer);
    const slower = against(answer.tokens_per_second, plain) === "slower";
    say(
      $("text-note"),
      [
        client(answer.client),
        answer.api,
        stateText(answer.state),
        `${speed(answer.tokens_per_second)} tok/s`,
        plain ? `plain ≈ ${speed(plain)}` : "",
        answer.tokens && !answer.drafted ? "nothing drafted" : "",
        slower ? `slower than plain decoding, ≈ ${times(answer.tokens_per_second, plain)}` : "",
        answer.passes ? `${(answer.tokens / answer.passes).toFixed(2)} tokens per pass` : "",
        `first token after ${duration(answer.first_token_seconds)}`,
        `${count(answer.cached_tokens)} of ${count(answer.prompt_tokens)} prompt tokens reused`,
        this.#texts.of(answer.id)?.cut ? "the newest text was left out: it is too long to keep" : "",
        this.#texts.of(answer.id)?.gone ? "its text is no longer kept" : "",
      ]
        .filter(Boolean)
        .join(" · "),
    );
  }

  #drawText() {
    const id = this.#shown;
    const answer = this.#answers.find((each) => each.id === id);
    if (!answer) return;
    const text = this.#texts.of(id);
    const ended = !["waiting", "reading", "writing"].includes(answer.state);
    if (ended && !text?.whole) {
      this.#texts.fetch(id).then(() => this.#shown === id && this.#texts.of(id)?.whole && this.#draw());
      if (!text) return;
    }
    const box = $("text");
    const below = box.scrollHeight - box.scrollTop - box.clientHeight;
    const pieces = text?.pieces ?? [];
    while (box.children.length > pieces.length) box.lastChild.remove();
    this.#drawn.length = Math.min(this.#drawn.length, pieces.length);
    pieces.forEach(([words, source], i) => {
      if (this.#drawn[i] === words && box.children[i].className === style(source)) return;
      const span = box.children[i] ?? box.appendChild(make("span"));
      span.className = style(source);
      span.textContent = words;
      span.title = source === null ? "" : label(source);
      span.dataset.source = source ?? OWN;
      this.#drawn[i] = words;
    });
    for (const span of box.children) {
      span.classList.toggle("dim", this.#only !== null && span.dataset.source !== this.#only);
    }
    if (!ended && below < 40) box.scrollTop = box.scrollHeight;
  }
}
