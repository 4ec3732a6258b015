// The live view: one event stream, merged into one state. Whoever listens is told after each change.

/** Silence after which the connection is taken for dead: the server sends something each 10 s. */
const SILENCE = 12_000;
/** Pause before a stream that ended is opened again. */
const AGAIN = 2_000;
/** A tab that nobody sees gives its connection back after this: a browser has six for a host, and they are shared. */
const UNSEEN = 10_000;

/** Merges a patch (RFC 7386) into a state. */
export function merge(state, patch) {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch;
  const merged = state !== null && typeof state === 'object' && !Array.isArray(state) ? state : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = merge(merged[key], value);
  }
  return merged;
}

/**
 * Opens a stream. `on.change(state, notes, whole)` gets the state and what happened since the last call;
 * `on.status({live, paused, since})` tells how the connection is.
 */
export function open(url, on) {
  let source = null;
  let state = {};
  let last = '';
  let heard = Date.now();
  let live = false;
  let paused = false;
  let held = [];
  let heldWhole = false;
  let skew = -Infinity;
  let asleep = false;
  let unseen = 0;
  const ended = new AbortController();

  const tell = () => on.status({ live, paused, heard });
  const show = (notes, whole) => {
    held.push(...notes);
    held = held.slice(-60);
    heldWhole ||= whole;
    if (paused) return;
    on.change(state, held, heldWhole);
    held = [];
    heldWhole = false;
  };

  function take(event) {
    heard = Date.now();
    last = event.lastEventId;
    const message = JSON.parse(event.data);
    const whole = 'whole' in message;
    state = whole ? message.whole : 'patch' in message ? merge(state, message.patch) : state;
    // The server's time comes in whole seconds: the greatest difference seen is nearest to the true one.
    if (state.now) skew = Math.max(state.now - Date.now(), skew - 5);
    if (!live) {
      live = true;
      tell();
    }
    show(message.notes ?? [], whole);
  }

  function connect() {
    source?.close();
    if (asleep || ended.signal.aborted) return;
    heard = Date.now();
    const resumed = last ? `${url.includes('?') ? '&' : '?'}last=${encodeURIComponent(last)}` : '';
    source = new EventSource(url + resumed);
    source.addEventListener('whole', take);
    source.addEventListener('patch', take);
    source.addEventListener('error', () => {
      if (live) {
        live = false;
        tell();
      }
      // A browser tries again by itself after a lost connection, not after an answer that is no stream.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN);
    });
  }

  const watch = setInterval(() => {
    if (asleep || Date.now() - heard <= SILENCE || source.readyState === EventSource.CLOSED) return;
    live = false;
    tell();
    connect();
  }, 1000);

  document.addEventListener('visibilitychange', () => {
    clearTimeout(unseen);
    if (document.hidden) {
      unseen = setTimeout(() => {
        asleep = true;
        source.close();
      }, UNSEEN);
    } else if (asleep) {
      asleep = false;
      connect(); // it goes on behind the last event it has
    }
  }, { signal: ended.signal });

  connect();
  return {
    pause(wanted) {
      paused = wanted;
      tell();
      if (!paused) show([], false);
    },
    get paused() {
      return paused;
    },
    get live() {
      return live;
    },
    get heard() {
      return heard;
    },
    /** The server's clock now, ms: a browser's own may be wrong. */
    now: () => Date.now() + (Number.isFinite(skew) ? skew : 0),
    close() {
      ended.abort();
      clearInterval(watch);
      source.close();
    },
  };
}
