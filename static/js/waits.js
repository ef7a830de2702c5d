// An answer that takes a while is waited for in sight: since when, and how to stop waiting. A form says by `data-waits`
// which element tells of it. What the server refuses stands where the answer would.

const clocks = new WeakMap();

export function startWaits() {
  document.addEventListener("htmx:beforeRequest", ({ target }) => target.matches("[data-waits]") && begin(target));
  document.addEventListener("htmx:afterRequest", ({ target }) => target.matches("[data-waits]") && end(target));
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    const isRefusal = detail.isError && detail.requestConfig.elt.matches("[data-waits]");
    if (!isRefusal || !detail.serverResponse.includes(`id="${detail.target.id}"`)) return;
    Object.assign(detail, { shouldSwap: true, isError: false });
  });
  document.addEventListener("click", ({ target }) => {
    if (target.closest?.("[data-cancel]")) window.htmx.trigger(target.closest("form"), "htmx:abort");
  });
}

function begin(form) {
  const since = performance.now();
  const place = placeOf(form);
  const tick = () => {
    place.querySelector("[data-elapsed]").textContent = Math.floor((performance.now() - since) / 1000);
  };
  clearInterval(clocks.get(form));
  clocks.set(form, setInterval(tick, 250));
  tick();
  place.hidden = false;
}

function end(form) {
  clearInterval(clocks.get(form));
  placeOf(form).hidden = true;
}

function placeOf(form) {
  return document.getElementById(form.getAttribute("data-waits"));
}
