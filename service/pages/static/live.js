// Follow a study: the stream says that something changed, the page is fetched again, and its parts are swapped.

import { reload } from "./swap.js";

const PAUSE_MS = 700;
const head = document.querySelector("[data-stream]");
let running = false;
let again = false;

async function refresh(last) {
  if (running) { again = true; return; }
  running = true;
  try {
    await reload();
  } finally {
    await new Promise((resolve) => setTimeout(resolve, last ? 0 : PAUSE_MS));
    running = false;
  }
  if (again) { again = false; await refresh(last); }
}

if (head) {
  const stream = new EventSource(head.dataset.stream);
  stream.addEventListener("changed", () => refresh(false));
  stream.addEventListener("ended", () => { stream.close(); refresh(true); });
}
