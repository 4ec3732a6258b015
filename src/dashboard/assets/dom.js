// The page's small vocabulary: finding, making and changing elements. Data goes in as text only, never as HTML.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

const SVG = 'http://www.w3.org/2000/svg';

/** Makes an element: `h('td', {class: 'r'}, 'text', child)`. Absent children are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, value);
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

/** A shape that tells a state: `glyph('lag', 'warn')`. */
export const glyph = (name, classes = '') =>
  s('svg', { class: `g ${classes}`, 'aria-hidden': 'true' }, s('use', { href: `#g-${name}` }));

/** An icon of a control. */
export const icon = (name) => s('svg', { class: 'i', 'aria-hidden': 'true' }, s('use', { href: `#i-${name}` }));

// Every change is queued and written once a frame; what is the same already is not written.
const texts = new Map();
const attributes = new Map();
let queued = false;

function queue() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(write);
}

function write() {
  queued = false;
  for (const [element, text] of texts) if (element.textContent !== text) element.textContent = text;
  texts.clear();
  for (const [element, changes] of attributes)
    for (const [name, value] of Object.entries(changes)) {
      if (value == null) element.removeAttribute(name);
      else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
    }
  attributes.clear();
}

/** Sets an element's text with the next frame. */
export function put(element, text) {
  texts.set(element, String(text));
  queue();
}

/** Sets or removes (null) attributes with the next frame. */
export function set(element, changes) {
  attributes.set(element, { ...attributes.get(element), ...changes });
  queue();
}

/** Points a glyph's or an icon's `use` at another shape. */
export const reshape = (svg, href, classes) => {
  set(svg.firstElementChild, { href });
  set(svg, { class: classes });
};

/** The children that `keyed` made, by their keys. */
const kept = new WeakMap();

/**
 * Keeps one child of `parent` for each key, in order. `make(key)` makes one, its `update` property is then called with
 * the key's value. No element is made again, none moves that stands right.
 */
export function keyed(parent, entries, make) {
  if (!kept.has(parent)) kept.set(parent, new Map());
  const rows = kept.get(parent);
  const wanted = new Set(entries.map(([key]) => key));
  for (const [key, row] of rows) {
    if (wanted.has(key)) continue;
    row.remove();
    rows.delete(key);
  }
  let at = parent.firstElementChild;
  for (const [key, value] of entries) {
    let row = rows.get(key);
    if (!row) rows.set(key, (row = make(key)));
    if (row === at) at = at.nextElementSibling;
    else parent.insertBefore(row, at);
    row.update(value);
  }
}

/** Rows turn into grids on a phone, and a grid has no roles of its own: they are said aloud. */
export function sayRoles(root) {
  const roles = { table: 'table', 'thead,tbody': 'rowgroup', tr: 'row', th: 'columnheader', td: 'cell' };
  for (const [selector, role] of Object.entries(roles)) for (const e of $$(selector, root)) e.setAttribute('role', role);
}

/** A command to copy. */
export function command(text, classes = 'cmd') {
  const button = h('button', { class: 'btn sm sq copy', type: 'button', 'aria-label': 'Copy' }, icon('copy'));
  button.addEventListener('click', async () => {
    await navigator.clipboard?.writeText(text);
    button.setAttribute('aria-label', 'Copied');
    button.replaceChildren('Copied');
    setTimeout(() => {
      button.replaceChildren(icon('copy'));
      button.setAttribute('aria-label', 'Copy');
    }, 1200);
  });
  return h('div', { class: classes }, h('code', {}, text), button);
}
