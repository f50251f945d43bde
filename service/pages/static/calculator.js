// Recalculate while the form is filled in: the same form, sent to the same page, its result swapped in.

import { swap } from "./swap.js";

const DELAY_MS = 250;
const form = document.getElementById("new-study");
let timer = 0;
let request = null;

async function calculate() {
  request?.abort();
  request = new AbortController();
  try {
    const answer = await fetch("/new/calculate", {
      method: "POST", body: new URLSearchParams(new FormData(form)), signal: request.signal, headers: { accept: "text/html" },
    });
    if (answer.ok || answer.status === 422) swap(await answer.text());
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}

function follow() {
  const size = form.elements.size;
  const measured = form.elements.hardware.value.startsWith("worker:");
  size.disabled = measured;
  document.getElementById("gpus").textContent = measured ? "as the worker has" : 2 ** Number(size.value);
  for (const [field, choice] of [["config", "custom"], ["hub", "hub"]]) {
    form.elements[field].closest("label").classList.toggle("unless-custom", form.elements.model.value !== choice);
  }
}

function recalculate() {
  follow();
  clearTimeout(timer);
  timer = setTimeout(calculate, DELAY_MS);
}

// An id is looked up once it is complete, not after each of its letters.
form.addEventListener("input", (event) => { if (event.target.name !== "hub") recalculate(); });
form.addEventListener("change", (event) => { if (event.target.name === "hub") recalculate(); });
follow();
document.getElementById("calculate").hidden = true;
