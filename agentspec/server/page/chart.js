// Columns of tokens per second: accepted above the line, drafted in vain below it.

import { put, say, svg } from "./dom.js";
import { count, percent, speed } from "./format.js";
import { label, ordered, OWN, style } from "./sources.js";

const NICE = [1, 2, 3, 5, 8, 10];

function ceiling(n) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  return NICE.find((step) => step * unit >= n) * unit;
}

export class Chart {
  #root;
  #reading;
  #history;
  #plain = null;
  #paths = new Map();
  #line = svg("path", { class: "plain-line" });
  #zero = svg("path", { class: "zero-line" });
  #mark = svg("rect", { class: "mark", width: 1, y: 0, height: 100 });
  #at = null; // the column that is read out, counted from now; null: none

  constructor(root, reading, history) {
    this.#root = root;
    this.#reading = reading;
    this.#history = history;
    root.querySelector("svg").append(this.#mark, this.#zero, this.#line);
    root.addEventListener("pointermove", (event) => {
      const box = root.getBoundingClientRect();
      const x = Math.floor(((event.clientX - box.left) / box.width) * history.length);
      this.#read(history.length - 1 - x);
    });
    root.addEventListener("pointerleave", () => this.#read(null));
    root.addEventListener("blur", () => this.#read(null));
    root.addEventListener("focus", () => this.#read(this.#at ?? 0));
    root.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: 1, ArrowDown: 1, ArrowRight: -1, ArrowUp: -1, PageUp: -10, PageDown: 10 };
      const at = this.#at ?? 0;
      if (event.key in step) this.#read(at + step[event.key]);
      else if (event.key === "Home") this.#read(history.length - 1);
      else if (event.key === "End") this.#read(0);
      else return;
      event.preventDefault();
    });
  }

  draw(plain) {
    this.#plain = plain;
    const columns = this.#history.columns();
    const names = ordered(new Set(columns.flatMap((column) => Object.keys(column.sources))));
    const per = this.#history.seconds;
    const vain = (column) =>
      names.reduce((sum, n) => sum + (column.sources[n] ? column.sources[n].drafted - column.sources[n].accepted : 0), 0);
    const high = ceiling(Math.max(1, 1.1 * (plain ?? 0), ...columns.map((c) => c.tokens / per)));
    const low = Math.max(high / 8, ...columns.map((c) => vain(c) / per));
    const y = (n) => (100 * (high - n)) / (high + low);

    const shapes = new Map();
    const box = (key, x, from, to) => {
      if (to - from < 1e-9) return;
      const [a, b] = [y(to).toFixed(2), y(from).toFixed(2)];
      shapes.set(key, `${shapes.get(key) ?? ""}M${x + 0.1} ${a}h.8V${b}h-.8z`);
    };
    columns.forEach((column, x) => {
      let top = column.own / per;
      let bottom = 0;
      box(`+${OWN}`, x, 0, top);
      for (const name of names) {
        const { drafted, accepted } = column.sources[name] ?? { drafted: 0, accepted: 0 };
        box(`+${name}`, x, top, top + accepted / per);
        box(`-${name}`, x, bottom - (drafted - accepted) / per, bottom);
        top += accepted / per;
        bottom -= (drafted - accepted) / per;
      }
    });
    for (const key of [...shapes.keys(), ...this.#paths.keys()]) {
      let path = this.#paths.get(key);
      if (!path) {
        path = svg("path", { class: `${style(key.slice(1))} ${key[0] === "+" ? "kept" : "vain"}` });
        this.#paths.set(key, path);
        this.#root.querySelector("svg").insertBefore(path, this.#zero);
      }
      put(path, "d", shapes.get(key) ?? "");
    }
    put(this.#zero, "d", `M0 ${y(0)}H${this.#history.length}`);
    put(this.#line, "d", plain ? `M0 ${y(plain)}H${this.#history.length}` : "");
    this.#place("top", 0, `${count(high)} tok/s`);
    this.#place("zero", y(0), "0");
    this.#place("plain", y(plain ?? 0), plain ? `plain ≈ ${speed(plain)}` : "");
    this.#show();
  }

  #place(name, y, text) {
    const axis = this.#root.querySelector(`.${name}`);
    axis.style.top = `${y.toFixed(1)}%`;
    axis.classList.toggle("under", y < 22); // else it would cover the label at the top
    say(axis, text);
  }

  #read(at) {
    this.#at = at === null ? null : Math.min(this.#history.length - 1, Math.max(0, at));
    this.#show();
  }

  #show() {
    const { length, seconds } = this.#history;
    const x = length - 1 - (this.#at ?? 0);
    const column = this.#history.columns()[x];
    const parts = ordered(Object.keys(column.sources))
      .filter((name) => column.sources[name].drafted >= 0.5)
      .map((name) => {
        const { drafted, accepted } = column.sources[name];
        return `${label(name)} ${percent(accepted, drafted)} of ${count(drafted)}`;
      });
    const ago = (this.#at ?? 0) * seconds;
    const text = [
      ago ? `${ago} s ago: ${speed(column.tokens / seconds)} tok/s` : `now: ${speed(column.tokens / seconds)} tok/s`,
      ...parts,
    ].join(" · ");
    put(this.#mark, "x", x);
    this.#mark.classList.toggle("shown", this.#at !== null);
    put(this.#root, "aria-valuenow", -ago);
    put(this.#root, "aria-valuetext", text);
    put(this.#root, "aria-valuemin", -length * seconds);
    say(this.#reading, this.#at === null ? "point at a column, or use the arrow keys, to read it" : text);
    this.#reading.classList.toggle("faint", this.#at === null);
  }
}

// A small line of rates between 0 and 1; nulls are gaps.
export function trend(path, rates) {
  let d = "";
  let on = false;
  rates.forEach((rate, i) => {
    if (rate !== null) d += `${on ? "L" : "M"}${i} ${(19 - 18 * rate).toFixed(1)}${on ? "" : "h.01"}`;
    on = rate !== null;
  });
  put(path, "d", d);
}
