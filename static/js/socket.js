// A socket of numbered messages: after a gap the server sends what was missed, from the number that this page has. It
// rests while the tab is hidden, and tries again, later each time, when it is lost.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 20_000;
const REFUSED = 4404;

// `onState` hears live, waiting, off (for long, or for good) and paused.
export function openSocket(path, { since, onMessage, onState = () => {} }) {
  let last = since;
  let waitMs = FIRST_WAIT_MS;
  let socket = null;
  let retryId = 0;

  const connect = () => {
    clearTimeout(retryId);
    if (socket || document.hidden) return;
    onState(waitMs > 4 * FIRST_WAIT_MS ? "off" : "waiting");
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const mine = new WebSocket(`${scheme}://${location.host}${path}?since=${last}`);
    socket = mine;
    mine.addEventListener("message", (event) => {
      if (mine === socket) hear(JSON.parse(event.data));
    });
    mine.addEventListener("close", (event) => {
      if (mine !== socket) return;
      socket = null;
      if (event.code === REFUSED) return onState("off");
      onState(waitMs > 4 * FIRST_WAIT_MS ? "off" : "waiting");
      retryId = setTimeout(connect, waitMs * (0.7 + 0.6 * Math.random()));
      waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
    });
  };
  const hear = (message) => {
    if (message.kind === "hello") {
      waitMs = FIRST_WAIT_MS;
      last ||= message.number;
      return onState("live");
    }
    last = message.number;
    onMessage(message);
  };
  const pause = () => {
    clearTimeout(retryId);
    const old = socket;
    socket = null;
    old?.close();
    onState("paused");
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : connect()));
  window.addEventListener("online", connect);
  connect();
}
