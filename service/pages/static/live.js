// Follow a study: the stream says that something changed, the page is fetched again, and its parts are swapped.

import { hasSameParts, swap } from "./swap.js";

const PAUSE_MS = 700;
const head = document.querySelector("[data-stream]");
let running = false;
let again = false;

async function refresh(last) {
  if (running) { again = true; return; }
  running = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.ok) {
      const html = await answer.text();
      // A section that appears for the first time needs its place, which only a whole page has.
      if (hasSameParts(html)) swap(html);
      else document.getElementById("main").replaceChildren(...parsed(html));
    }
  } finally {
    await new Promise((resolve) => setTimeout(resolve, last ? 0 : PAUSE_MS));
    running = false;
  }
  if (again) { again = false; await refresh(last); }
}

function parsed(html) {
  return [...new DOMParser().parseFromString(html, "text/html").getElementById("main").childNodes];
}

if (head) {
  const stream = new EventSource(head.dataset.stream);
  stream.addEventListener("changed", () => refresh(false));
  stream.addEventListener("ended", () => { stream.close(); refresh(true); });
}
