// Follow a page that has no stream of its own: while somebody looks, fetch it again every few seconds and swap its parts.

import { reload } from "./swap.js";

const PERIOD_MS = 3000;

async function follow() {
  // A hidden page asks for nothing; an unreachable service may answer the next time.
  if (!document.hidden) await reload().catch(() => {});
  setTimeout(follow, PERIOD_MS);
}

setTimeout(follow, PERIOD_MS);
