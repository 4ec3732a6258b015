// The top bar and the keys: what this page is about, the clock, pause, light and dark, the way to a symbol.

import { $, glyph, h, icon, put, set } from './dom.js';
import { clock, dateTime } from './format.js';

/** The path of a symbol's page; `/` stays readable. */
export const symbolPath = (symbol) => `/symbols/${encodeURIComponent(symbol).replaceAll('%2F', '/').replaceAll('%3A', ':')}`;

export function theme() {
  const root = document.documentElement;
  const kept = localStorage.getItem('theme');
  if (kept) root.dataset.theme = kept;
  $('#theme').addEventListener('click', () => {
    const dark = matchMedia('(prefers-color-scheme:dark)').matches;
    const now = root.dataset.theme ?? (dark ? 'dark' : 'light');
    root.dataset.theme = now === 'dark' ? 'light' : 'dark';
    localStorage.setItem('theme', root.dataset.theme);
    dispatchEvent(new Event('themechange'));
  });
  matchMedia('(prefers-color-scheme:dark)').addEventListener('change', () => dispatchEvent(new Event('themechange')));
}

export function search() {
  const input = $('#goto');
  $('#find').addEventListener('submit', (event) => {
    event.preventDefault();
    const symbol = input.value.trim();
    if (symbol) location.href = symbolPath(symbol);
  });
  let asked = 0;
  const ask = async () => {
    const number = ++asked;
    const answer = await fetch(`/api/symbols?q=${encodeURIComponent(input.value)}`).catch(() => null);
    if (!answer?.ok || number !== asked) return;
    const names = await answer.json();
    $('#names').replaceChildren(...names.map((name) => h('option', { value: name })));
  };
  input.addEventListener('input', ask);
  input.addEventListener('focus', ask);
}

/** Shows how the stream is, and lets it be paused. Returns what the stream reports its status to. */
export function live(stream) {
  const button = $('#live');
  const shown = {};
  const show = (name, classes, shape, words) => {
    if (shown.words !== words) {
      button.replaceChildren(shape, h('span', {}, words));
      shown.words = words;
    }
    set(button, { class: `btn live ${name}`, 'aria-pressed': String(stream().paused) });
  };
  const status = () => {
    const { paused, live, heard } = stream();
    const silent = Math.round((Date.now() - heard) / 1000);
    if (paused) show('', '', icon('play'), 'Paused');
    else if (live) show('', '', glyph('ok', 'ok'), 'Live');
    else show('away', '', glyph('ask', 'warn'), silent > 1 ? `Away ${silent} s` : 'Connecting');
    if (!live && !paused) {
      button.title = `Reconnecting; what is shown is as of ${dateTime(heard)} UTC`;
    } else button.title = paused ? 'Go on (space)' : 'Pause all updates (space)';
  };
  const toggle = () => stream().pause(!stream().paused);
  button.addEventListener('click', toggle);
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest('input,select,textarea,button,a,summary,[role=slider]')) return;
    if (event.key === '/') {
      event.preventDefault();
      $('#goto').focus();
    }
    if (event.key === ' ') {
      event.preventDefault();
      toggle();
    }
  });
  setInterval(() => {
    const { paused, live } = stream();
    if (!paused && live) put($('#clock'), clock(stream().now()));
    status();
  }, 500);
  return status;
}

/** What the page is about; the same for all views. */
export function about({ topic, group, namespace, version, served_by, writes }) {
  put($('#topic'), topic);
  put($('#group'), group);
  put($('#namespace'), namespace);
  put($('#served'), `tickwatch ${version}, served by ${served_by}`);
  const mode = $('#mode');
  put($('span', mode), writes ? 'Writes allowed' : 'Read-only');
  set(mode, {
    class: writes ? 'chip rw' : 'chip',
    title: writes ? 'Whoever reaches this page can change rules' : 'Started without --allow-writes',
  });
}
