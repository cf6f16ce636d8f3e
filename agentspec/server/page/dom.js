// Elements from code: texts are only ever set as text.

export const $ = (id) => document.getElementById(id);

export function make(tag, style = "", text = "", attributes = {}) {
  const made = document.createElement(tag);
  if (style) made.className = style;
  if (text) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function svg(tag, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function put(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// One child per key, in this order; those that stay keep focus and selection.
export function keyed(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = old.get(key);
    if (child) old.delete(key);
    else {
      child = create(item);
      child.dataset.key = key;
    }
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}

// A bar of parts [style, share of 1, title]; shares are set by code, which the content policy allows.
export function bar(element, parts) {
  while (element.children.length > parts.length) element.lastElementChild.remove();
  while (element.children.length < parts.length) element.append(make("i"));
  parts.forEach(([style, share, title], i) => {
    const part = element.children[i];
    if (part.className !== style) part.className = style;
    const width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;
    if (part.style.width !== width) part.style.width = width;
    if (part.title !== title) part.title = title;
  });
}
