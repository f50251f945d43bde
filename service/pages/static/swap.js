// Replace the parts of a page marked data-live by those of a newer rendering, keeping focus, ticks and open details.

import { enhance } from "./enhance.js";

export function swap(html) {
  const newer = new DOMParser().parseFromString(html, "text/html");
  const focused = place(document.activeElement);
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = newer.getElementById(part.id);
    if (!other) continue;
    carryState(part, other);
    if (part.isEqualNode(other)) continue;
    part.replaceWith(document.adoptNode(other));
    enhance(other);
  }
  if (focused) find(focused)?.focus({ preventScroll: true });
}

/** Fetch the page again and show what is new in it. */
export async function reload() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok) return;
  const html = await answer.text();
  if (hasSameParts(html)) swap(html);
  else replaceAll(html);
}

function hasSameParts(html) {
  const newer = new DOMParser().parseFromString(html, "text/html");
  const names = (root) => [...root.querySelectorAll("[data-live]")].map((part) => part.id).join();
  return names(document) === names(newer);
}

// A section that appears for the first time needs its place, which only a whole page has.
function replaceAll(html) {
  const main = document.getElementById("main");
  main.replaceChildren(...new DOMParser().parseFromString(html, "text/html").getElementById("main").childNodes);
  enhance(main);
}

function carryState(from, to) {
  for (const box of from.querySelectorAll("input[type=checkbox]:checked")) {
    to.querySelector(`input[value="${CSS.escape(box.value)}"]`)?.setAttribute("checked", "");
    box.setAttribute("checked", "");
  }
  from.querySelectorAll("details").forEach((details, index) => {
    const named = details.id && to.querySelector(`#${CSS.escape(details.id)}`);
    if (named) named.open = details.open;
    // Without a name, the one at its place: it may be another by now, so it is never closed.
    else if (details.open) to.querySelectorAll("details")[index]?.setAttribute("open", "");
  });
}

const REACHABLE = "a, button, input, summary, select, [tabindex]";

function traits(element) {
  const leadsTo = element.getAttribute("href") ?? element.getAttribute("formaction") ?? element.form?.getAttribute("action");
  return [element.tagName, leadsTo, element.value, element.textContent.trim()].join("\n");
}

function place(element) {
  const part = element?.closest("[data-live]");
  if (!part) return null;
  const index = [...part.querySelectorAll(REACHABLE)].indexOf(element);
  return { part: part.id, href: element.getAttribute("href"), traits: traits(element), index };
}

// Rows may have moved, and a button's word changed: the same at its place, the same elsewhere, whatever is at its place.
function find({ part, href, traits: wanted, index }) {
  const reachable = [...(document.getElementById(part)?.querySelectorAll(REACHABLE) ?? [])];
  const there = reachable[index];
  if (there && traits(there) === wanted) return there;
  return reachable.find((element) => traits(element) === wanted)
    ?? reachable.find((element) => href && element.getAttribute("href") === href) ?? there;
}
