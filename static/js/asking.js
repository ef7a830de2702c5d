// How scripts ask the platform: with the token that counts now, for a login in another tab makes a new one; and whoever
// is logged out is told so. Knows no page.

export class LoggedOutError extends Error {
  constructor() {
    super("you are logged out: log in, then go on here");
  }
}

export function startAsking() {
  document.body.addEventListener("htmx:configRequest", ({ detail }) => {
    detail.headers["X-CSRFToken"] = token();
  });
}

// Returns the answer; throws LoggedOutError where the platform sends to the login, TypeError where it does not answer.
export async function ask(url, options = {}) {
  const answer = await fetch(url, { ...options, redirect: "manual" });
  if (answer.type === "opaqueredirect") throw new LoggedOutError();
  return answer;
}

export function tell(url, body, more = {}) {
  return ask(url, { ...more, method: "POST", body, headers: { Accept: "application/json", "X-CSRFToken": token() } });
}

function token() {
  const kept = document.cookie.match(/(?:^|; )csrftoken=([^;]+)/);
  return kept ? kept[1] : JSON.parse(document.body.getAttribute("hx-headers"))["X-CSRFToken"];
}
