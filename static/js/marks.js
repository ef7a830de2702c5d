// Words of an answer: those that somebody said something of are marked and lead to what was said; of those that are
// selected a button offers to say something, and fills the form in. The form works by hand.

export function startMarks() {
  if (!document.getElementById("said-panel")) return;
  drawMarks();
  for (const name of ["htmx:afterSettle", "live:refreshed"]) document.addEventListener(name, drawMarks);
  if (!document.getElementById("say-form")) return;
  document.addEventListener("selectionchange", offer);
}

function drawMarks() {
  for (const mark of document.querySelectorAll(".said-mark")) {
    const { parentNode } = mark;
    mark.replaceWith(...mark.childNodes);
    parentNode.normalize();
  }
  for (const entry of document.querySelectorAll("#said-panel [data-words]")) {
    const { step, words, place } = entry.dataset;
    const answer = document.querySelector(`#body-${CSS.escape(step)} .message.answer > :last-child`);
    const from = answer ? findPlace(answer.textContent, words, Number(place)) : -1;
    if (from >= 0) mark(answer, from, from + words.length, entry);
  }
}

function findPlace(text, words, place) {
  let from = text.indexOf(words);
  for (let left = place; left > 0 && from >= 0; left -= 1) from = text.indexOf(words, from + 1);
  return from;
}

// Each text between the two places becomes a link; one in a link of the answer's own stays as it is.
function mark(answer, from, to, entry) {
  const walker = document.createTreeWalker(answer, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  let place = 0;
  for (const text of texts) {
    const [start, end] = [Math.max(from - place, 0), Math.min(to - place, text.length)];
    place += text.length;
    if (start >= end || text.parentElement.closest("a")) continue;
    const link = Object.assign(document.createElement("a"), { className: "said-mark", href: `#${entry.id}`, title: entry.dataset.about });
    const range = document.createRange();
    range.setStart(text, start);
    range.setEnd(text, end);
    range.surroundContents(link);
  }
}

let offered = null;

function offer() {
  offered?.remove();
  offered = null;
  const selection = document.getSelection();
  const words = selection.toString();
  const answer = selection.anchorNode?.parentElement?.closest(".message.answer");
  if (!words.trim() || !answer || !answer.contains(selection.focusNode)) return;
  const body = answer.closest(".step-body");
  const box = selection.getRangeAt(0).getBoundingClientRect();
  offered = document.createElement("button");
  offered.type = "button";
  offered.className = "button small mark-button";
  offered.textContent = "Say something of these words";
  offered.addEventListener("pointerdown", (event) => event.preventDefault()); // the selection stays
  offered.addEventListener("click", () => fill(body.id.replace("body-", ""), words, countBefore(answer, selection, words)));
  document.body.append(offered);
  const { style } = offered;
  style.left = `${Math.max(8, box.left + window.scrollX)}px`;
  style.top = `${box.bottom + window.scrollY + 6}px`;
}

// In how many places before the selection the same words stand.
function countBefore(answer, selection, words) {
  const before = document.createRange();
  before.setStart(answer, 0);
  before.setEnd(selection.getRangeAt(0).startContainer, selection.getRangeAt(0).startOffset);
  return before.toString().split(words).length - 1;
}

function fill(step, words, place) {
  const form = document.getElementById("say-form");
  document.getElementById("say-box").open = true;
  form.elements.step.value = step;
  form.elements.words.value = words;
  form.elements.place.value = place;
  document.getSelection().removeAllRanges(); // and with it the button, which would lie over the text
  form.scrollIntoView({ block: "nearest" });
  form.querySelector(".options input, .box textarea")?.focus();
}
