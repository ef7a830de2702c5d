// Says what happened and offers to undo it for ten seconds. htmx answers raise the event "toast".

const UNDO_S = 10;
const PLAIN_S = 5;

export function startToasts() {
  document.body.addEventListener("toast", (event) => showToast(event.detail));
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    // A new change is on its way: the undo of the one before would no longer fit.
    if (event.detail.requestConfig.verb !== "get") document.getElementById("toasts").replaceChildren();
  });
  document.body.addEventListener("htmx:sendError", () =>
    showToast({ text: "Not saved: the platform does not answer. Try again in a moment.", kind: "error" }));
  document.body.addEventListener("htmx:responseError", (event) => {
    const said = event.detail.xhr.getResponseHeader("HX-Trigger");
    if (!said) showToast({ text: `Not saved: the platform answered ${event.detail.xhr.status}.`, kind: "error" });
  });
}

export function showToast({ text, undo = "", kind = "done", target = "" }) {
  const place = document.getElementById("toasts");
  const toast = document.createElement("div");
  toast.className = "toast";
  toast.dataset.kind = kind;
  const words = document.createElement("span");
  words.textContent = text;
  toast.append(words);
  if (undo) toast.append(undoButton(toast, undo, target));
  place.replaceChildren(toast);
  const timer = { left: undo ? UNDO_S : PLAIN_S, id: 0 };
  const tick = () => {
    if (!toast.matches(":hover, :focus-within")) timer.left -= 1;
    if (timer.left <= 0 || !toast.isConnected) {
      clearInterval(timer.id);
      toast.remove();
    }
  };
  timer.id = setInterval(tick, 1000);
}

function undoButton(toast, address, target) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Undo";
  button.dataset.undo = "";
  button.addEventListener("click", () => {
    toast.remove();
    window.htmx.ajax("POST", address, { target, swap: "outerHTML" });
  });
  return button;
}
