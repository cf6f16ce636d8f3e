// Who can propose a token: the order in which they are drawn, and a style for each.

const KNOWN = ["lookup", "edit", "habit", "skeleton", "predicted", "draft_model", "forced"];

export const OWN = "target";

// a source of a later version still gets a colour; its name never becomes a class
export const style = (name) =>
  name === OWN || name === null ? "s-own" : KNOWN.includes(name) ? `s-${name}` : "s-other";

export function ordered(names) {
  const place = (name) => (KNOWN.includes(name) ? KNOWN.indexOf(name) : KNOWN.length);
  return [...names].sort((a, b) => place(a) - place(b) || (a < b ? -1 : a > b ? 1 : 0));
}

export const label = (name) => name.replaceAll("_", " ");

export const acceptedOf = (sources) =>
  Object.values(sources).reduce((sum, each) => sum + each.accepted, 0);

// plain decoding's speed as far as there is something to compare: without drafts it is the speed itself
export const plainOf = (counts) => (counts.drafted > 0 ? counts.plain_per_second : null);

// parts of an answer's tokens: [name, tokens], the target's own last
export function parts(answer) {
  const found = ordered(Object.keys(answer.sources)).map((n) => [n, answer.sources[n].accepted]);
  const own = Math.max(0, answer.tokens - acceptedOf(answer.sources));
  return [...found, [OWN, own]].filter(([, n]) => n > 0);
}
