// One change at a time. The answer to a change replaces parts of the page, other forms among them: what is sent from such
// a form meanwhile would find neither the place for its answer nor the page's ear for its toast. So it waits its turn.
// What leads to another page is sent once: a second press would change twice, or be told that the first one did.

const UNDER_WAY = "form[hx-post].htmx-request, body.htmx-request"; // the body sends what has no form: an undo
const ONCE_MS = 15_000; // then the answer is lost, and another try is wanted
const waiting = [];

export function startPresses() {
  document.addEventListener("submit", hold, { capture: true });
  document.addEventListener("htmx:afterRequest", sendNext);
  document.addEventListener("submit", sendOnce);
  window.addEventListener("pageshow", () => document.querySelectorAll("form[data-sent]").forEach(release)); // back again
}

function sendOnce(event) {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post" || form.matches("[hx-post]")) return;
  if (form.hasAttribute("data-sent")) event.preventDefault(); // a form's `dataset` may be a field of that name
  form.setAttribute("data-sent", "");
  setTimeout(() => release(form), ONCE_MS);
}

function release(form) {
  form.removeAttribute("data-sent");
}

function hold(event) {
  const form = event.target;
  if (!form.matches("form[hx-post]") || !document.querySelector(UNDER_WAY)) return;
  event.preventDefault();
  event.stopPropagation();
  waiting.push({
    address: form.getAttribute("hx-post"),
    target: form.getAttribute("hx-target"),
    values: Object.fromEntries(new FormData(form, event.submitter)),
  });
}

function sendNext() {
  if (!waiting.length || document.querySelector(UNDER_WAY)) return;
  const { address, target, values } = waiting.shift();
  window.htmx.ajax("POST", address, { target, values, swap: "outerHTML" });
}
