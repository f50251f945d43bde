// What only works with a script, shown in the page or in a part that was swapped in. A module of its own: loaded once,
// however many import it.

const MINUTE = 60, HOUR = 3600, DAY = 86400;

function relative(moment) {
  const age = (Date.now() - moment) / 1000;
  if (age < 10) return "just now";
  if (age < 90) return `${Math.round(age)} s ago`;
  if (age < 90 * MINUTE) return `${Math.round(age / MINUTE)} min ago`;
  return age < 36 * HOUR ? `${Math.round(age / HOUR)} h ago` : `${Math.round(age / DAY)} days ago`;
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
  updateTimes();
}
