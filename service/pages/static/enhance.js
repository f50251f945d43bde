// What only works with a script, shown in the page or in a part that was swapped in. A module of its own: loaded once,
// however many import it.

const MINUTE = 60, HOUR = 3600, DAY = 86400;

function relative(moment) {
  const age = (Date.now() - moment) / 1000;
  if (Math.abs(age) < 10) return "just now";
  return age < 0 ? `in ${span(-age)}` : `${span(age)} ago`;
}

function span(length) {
  if (length < 90) return `${Math.round(length)} s`;
  if (length < 90 * MINUTE) return `${Math.round(length / MINUTE)} min`;
  return length < 36 * HOUR ? `${Math.round(length / HOUR)} h` : `${Math.round(length / DAY)} days`;
}

export function updateTimes() {
  for (const element of document.querySelectorAll("time[datetime]")) {
    const text = relative(Date.parse(element.dateTime));
    if (element.textContent !== text) element.textContent = text;
  }
}

/** Show what only works with a script, in the page or in a part that was swapped in. */
export function enhance(root) {
  for (const button of root.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.onclick = async () => {
      const text = button.previousElementSibling.textContent;
      const label = button.textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(button.previousElementSibling);
        button.textContent = "Selected: press Ctrl-C";
      }
      setTimeout(() => { button.textContent = label; }, 2000);
    };
  }
  for (const log of root.querySelectorAll("[data-end]")) log.scrollTop = log.scrollHeight;
  updateTimes();
}
