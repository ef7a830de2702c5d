// The numbered events of a queue: after a gap the server sends what was missed, from the number that this page has.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 20_000;
const REFUSED = 4404;

export function startReviewSocket(work, { onEvent }) {
  let since = Number(work.dataset.since);
  let waitMs = FIRST_WAIT_MS;
  let socket = null;

  const connect = () => {
    if (socket || document.hidden) return;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const mine = new WebSocket(`${scheme}://${location.host}${work.dataset.socket}?since=${since}`);
    socket = mine;
    mine.addEventListener("message", (event) => {
      const said = JSON.parse(event.data);
      waitMs = FIRST_WAIT_MS;
      if (said.kind === "hello" || said.number <= since) return;
      since = said.number;
      work.dataset.since = since;
      onEvent(said);
    });
    mine.addEventListener("close", (event) => {
      if (mine !== socket) return;
      socket = null;
      if (event.code === REFUSED) return;
      setTimeout(connect, waitMs * (0.7 + 0.6 * Math.random()));
      waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
    });
  };
  const pause = () => {
    const old = socket;
    socket = null;
    old?.close();
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : connect()));
  connect();
}
