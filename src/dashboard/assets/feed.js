// Notifications as they fire. The list holds still under the pointer and under focus, and says how many wait.

import { $, h, icon, put, set } from './dom.js';
import { symbolPath } from './bar.js';
import { clock, decimal, OPERATORS } from './format.js';

/** Rows kept. */
const MOST = 60;

/** `crossed ≥ 9,500`, `is < 0.1840` */
const fired = ({ trigger, op, threshold }) =>
  `${trigger === 'edge' ? 'crossed' : 'is'} ${OPERATORS[op] ?? op} ${decimal(threshold)}`;

function row(note, ofOne) {
  const was = note.previous == null ? note.trigger : `was ${decimal(note.previous)}${ofOne ? ` · ${note.trigger}` : ''}`;
  const time = h('time', { 'data-ms': note.at }, clock(note.at, true));
  const head = ofOne
    ? h('b', { class: 'el' }, fired(note))
    : h('a', { class: 'b el', href: symbolPath(note.symbol) }, note.symbol);
  const text = ofOne ? was : `${fired(note)} · ${note.trigger === 'edge' ? was : 'level'}`;
  const tail = note.note ? ` · ${note.note}` : '';
  return h(
    'li', { class: 'n fresh', 'data-number': note.number }, time, head, h('b', { class: 'r' }, decimal(note.price)),
    h('span', { class: 's2 el', title: text + tail }, text + tail), h('span', { class: 'id', title: note.rule }, note.rule),
  );
}

/** `ofOne`: all of one symbol, so its name is not said again. */
export function feed(root, ofOne = false) {
  const list = $('#feed', root);
  const none = $('#f-none', root);
  const says = $('#held', root);
  const button = $('#fp', root);
  let [hovered, focused, stopped] = [false, false, false];
  let waiting = [];
  let count = 0;

  function flush() {
    if (hovered || focused || stopped) {
      if (says) put(says, waiting.length ? `${count} held` : stopped ? 'paused' : 'as they fire');
      return;
    }
    if (says) put(says, 'as they fire');
    if (!waiting.length) return;
    const rows = waiting.map((note) => row(note, ofOne)).reverse();
    waiting = [];
    count = 0;
    requestAnimationFrame(() => {
      list.prepend(...rows);
      while (list.children.length > MOST) list.lastElementChild.remove();
      none.hidden = true;
    });
  }

  list.addEventListener('mouseenter', () => (hovered = true));
  list.addEventListener('mouseleave', () => ((hovered = false), flush()));
  list.addEventListener('focusin', () => (focused = list.matches(':focus-visible') || list.querySelector(':focus-visible') != null));
  list.addEventListener('focusout', () => ((focused = false), flush()));
  button?.addEventListener('click', () => {
    stopped = !stopped;
    set(button, { 'aria-pressed': String(stopped) });
    button.replaceChildren(icon(stopped ? 'play' : 'pause'));
    flush();
  });

  /** `whole`: these are all there are, not only the new ones. */
  return (notes, whole) => {
    if (whole) {
      const known = new Set([...list.children].map((row) => Number(row.dataset.number)));
      notes = notes.filter((note) => !known.has(note.number));
    }
    count += notes.length;
    waiting.push(...notes);
    waiting = waiting.slice(-MOST);
    flush();
  };
}
