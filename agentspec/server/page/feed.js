// The server's feed: one stream that is opened again whenever it ends.
//
// EventSource cannot send an API key, so the stream is read from fetch.

const KEY = "agentspec.key";
const SILENCE_MS = 30_000; // the server says something every 10 seconds
const MOST_WAIT_MS = 5_000;
const POLL_MS = 2_000;

export function* blocks(buffer) {
  // complete events at the head of `buffer`: [name, data, length up to its end]
  let at = 0;
  for (let end; (end = buffer.indexOf("\n\n", at)) >= 0; at = end + 2) {
    let name = "message";
    const data = [];
    for (const line of buffer.slice(at, end).split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data.push(line.slice(6));
    }
    if (data.length) yield [name, data.join("\n"), end + 2];
  }
}

export class Feed {
  #on;
  #given = () => {};
  #failures = 0;

  // on: {live(object), pieces(object), state(name, text)}; states: live, lost, connecting, key
  constructor(on) {
    this.#on = on;
  }

  get hasKey() {
    return Boolean(sessionStorage.getItem(KEY));
  }

  use(key) {
    sessionStorage.setItem(KEY, key);
    this.#given();
  }

  forget() {
    sessionStorage.removeItem(KEY);
    location.reload();
  }

  async get(path) {
    const answer = await fetch(path, { headers: this.#headers(), cache: "no-store" });
    return answer.ok ? answer.json() : null;
  }

  async run() {
    for (;;) {
      try {
        await this.#connect();
      } catch {
        // a server that stops and one that is not there look alike: try again
      }
      const wait = Math.min(MOST_WAIT_MS, 250 * 2 ** this.#failures++);
      this.#on.state("lost", "no connection to the server, trying again");
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  #headers() {
    const key = sessionStorage.getItem(KEY);
    return key ? { Authorization: `Bearer ${key}` } : {};
  }

  async #connect() {
    const stop = new AbortController();
    const options = { headers: this.#headers(), cache: "no-store", signal: stop.signal };
    let timer = setTimeout(() => stop.abort(), SILENCE_MS);
    try {
      const answer = await fetch("events", options);
      if (answer.status === 401) {
        clearTimeout(timer);
        this.#on.state("key", this.hasKey ? "the server refuses this key" : "a key is needed");
        await new Promise((done) => (this.#given = done));
        this.#on.state("connecting", "connecting");
        this.#failures = 0;
        return this.#connect();
      }
      if (answer.status === 429) return await this.#poll();
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let buffer = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => stop.abort(), SILENCE_MS);
        buffer += value;
        let read = 0;
        for (const [name, data, end] of blocks(buffer)) {
          read = end;
          this.#give(name, JSON.parse(data));
        }
        buffer = buffer.slice(read);
      }
    } finally {
      clearTimeout(timer);
      stop.abort();
    }
  }

  // too many pages listen: ask now and then instead
  async #poll() {
    for (;;) {
      const found = await this.get("api/live");
      if (!found) return;
      this.#give("live", found);
      await new Promise((done) => setTimeout(done, POLL_MS));
    }
  }

  #give(name, data) {
    if (name === "live") {
      this.#failures = 0;
      this.#on.state("live", data.draining ? "finishing what runs, then it stops" : "live");
    }
    try {
      if (name === "live" || name === "pieces") this.#on[name](data);
    } catch (error) {
      reportError(error); // a fault of the page, not of the connection
    }
  }
}
