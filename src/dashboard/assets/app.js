// The page: which view its path is, the stream that fills it, the bar above it.

import { $ } from './dom.js';
import { about, live, search, theme } from './bar.js';
import { hoverTimes } from './format.js';
import { open } from './stream.js';

/** Ages are written this often between two frames. */
const TICK = 250;

const SYMBOLS = '/symbols/';
const ofSymbol = location.pathname.startsWith(SYMBOLS);
const name = ofSymbol ? 'symbol' : 'overview';
const { [name]: make } = await import(`./${name}.js`);

theme();
search();
hoverTimes();

let stream = null;
const now = () => (stream ? stream.now() : Date.now());
const main = $('#main');
main.classList.add(name);
main.append($(`template#${name}`).content.cloneNode(true));
const view = make(main, now, { symbol: ofSymbol ? decodeURIComponent(location.pathname.slice(SYMBOLS.length)) : null, reopen });

const pending = { paused: false, live: false, heard: Date.now(), now, pause: () => {} };
const status = live(() => stream ?? pending);

function reopen() {
  stream?.close();
  stream = open(view.url, {
    change(state, notes, whole) {
      about(state.about);
      view.show(state, notes, whole);
    },
    status: () => stream && status(),
  });
}

reopen();
setInterval(() => {
  if (stream.live && !stream.paused) view.tick();
}, TICK);
