// How numbers and times are written: tabular, grouped, UTC with local on hover. Decimals stay the text that was sent.

import { h } from './dom.js';

export const MINUS = '\u2212';

/** `48,211,904`, with so many decimals. */
export const number = (value, decimals = 0) =>
  value
    .toLocaleString('en-US', { minimumFractionDigits: decimals, maximumFractionDigits: decimals })
    .replace('-', MINUS);

/** Decimal text with its digits grouped; nothing is rounded. */
export function decimal(text) {
  if (text == null) return '';
  const [whole, fraction] = text.replace('-', MINUS).split('.');
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ',');
  return fraction === undefined ? grouped : `${grouped}.${fraction}`;
}

/** Digits behind the point of decimal text. */
export const decimals = (text) => text?.split('.')[1]?.length ?? 0;

/** Decimal text with at least so many digits behind the point, so that a column lines up. */
export const padded = (text, digits) => {
  if (text == null) return '';
  const missing = digits - decimals(text);
  return decimal(missing <= 0 ? text : `${text}${text.includes('.') ? '' : '.'}${'0'.repeat(missing)}`);
};

/** `14:02:31`, or with its milliseconds. Far from our era plain ms. */
export function clock(ms, fine = false) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString().slice(11, fine ? 23 : 19);
}

/** `2026-03-12 14:02:31` */
export const dateTime = (ms) => new Date(ms).toISOString().slice(0, 19).replace('T', ' ');

/** `9.3 s`, `21 m 30 s`, `3 h 05 m`, `12 d` */
export function age(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const two = (n) => String(Math.floor(n)).padStart(2, '0');
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${two(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${two((seconds / 60) % 60)} m`;
  return `${number(Math.floor(seconds / 86400))} d`;
}

/** A length as the command line takes it: `5m`, `1h 30m`. */
export function duration(ms) {
  const units = [['d', 86400000], ['h', 3600000], ['m', 60000], ['s', 1000], ['ms', 1]];
  const parts = [];
  for (const [unit, length] of units) {
    if (ms >= length) parts.push(`${Math.floor(ms / length)}${unit}`);
    ms %= length;
  }
  return parts.join(' ') || '0s';
}

/** `12.4k` */
export const short = (n) => (n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : n >= 1e3 ? `${(n / 1e3).toFixed(1)}k` : String(n));

/** A time element; `hoverTimes` says it in local time. */
export const timeElement = (ms, fine = false) =>
  h('time', { datetime: new Date(ms).toISOString(), 'data-ms': ms }, clock(ms, fine));

/** A sentence with its times, which stand in it as ⟦ms⟧, as elements. */
export const sentence = (text) =>
  text.split(/⟦(-?\d+)⟧/).map((part, at) => (at % 2 ? timeElement(Number(part)) : part)).filter((part) => part !== '');

/** The same as text. */
export const plainSentence = (text) => text.replace(/⟦(-?\d+)⟧/g, (_, ms) => clock(Number(ms)));

/** Says times in local time when the pointer is on them. */
export function hoverTimes() {
  document.addEventListener('mouseover', (event) => {
    const element = event.target.closest?.('[data-ms]');
    if (element) element.title = `${new Date(Number(element.dataset.ms)).toLocaleString()} local`;
  });
}

/** Operators as people write them. */
export const OPERATORS = { '>=': '≥', '<=': '≤', '>': '>', '<': '<', '=': '=' };
