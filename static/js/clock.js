// How the console writes a moment for people: of 24 hours, in the reader's own zone, which is named.

const EXACT = { dateStyle: "medium", timeStyle: "long", hourCycle: "h23" };
const MINUTE = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

export function writeMoment(at) {
  return at.toLocaleString(undefined, EXACT);
}

export function writeMinute(at) {
  return at.toLocaleTimeString(undefined, MINUTE);
}
