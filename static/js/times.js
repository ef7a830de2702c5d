// Keeps "3 min ago" true and shows the exact time in the reader's own zone.

import { writeMoment } from "./clock.js";

export function startTimes() {
  refresh();
  setInterval(refresh, 20_000);
  document.addEventListener("live:refreshed", refresh);
  document.body.addEventListener("htmx:afterSwap", refresh);
}

function refresh() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    time.textContent = inWords((now - at.getTime()) / 1000);
    time.title = `${writeMoment(at)} (${time.dateTime})`;
  }
}

function inWords(seconds) {
  if (seconds < 5) return "just now";
  if (seconds < 120) return `${Math.floor(seconds)} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86_400)} d ago`;
}
