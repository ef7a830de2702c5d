// Selected words of an answer: a button offers to say something of them, and fills the form in. The form works by hand.

export function startMarks() {
  if (!document.getElementById("say-form")) return;
  document.addEventListener("selectionchange", offer);
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
  offered?.remove();
  form.scrollIntoView({ block: "nearest" });
  form.querySelector(".options input, .box textarea")?.focus();
}
