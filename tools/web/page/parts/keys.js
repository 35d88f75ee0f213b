// The list of keys, which `?` and a button open.

import { button, el, wide } from "./dom.js";
import { plainTable } from "./table.js";

const EVERYWHERE = [
  ["?", "show this list"],
  ["Escape", "close this list"],
  ["← → Home End", "in the tabs: go to another view"],
  ["← → ↑ ↓ Home End", "in bytes: go to another byte; Enter selects its next field"],
  ["← →, Space", "in the bits of a byte: go to another bit, change it"],
  ["↑ ↓, Enter", "in fields: go to another field, select it"],
  ["↑ ↓, Enter", "in a ladder: go to another packet, open it"],
];

/** A button that shows the keys. `more`: a list of `[keys, effect]` for each view that has its own. */
export function createKeys(more) {
  const title = el("h2", { id: "keys-title", text: "Keys" });
  const dialog = el("dialog", { "aria-labelledby": title.id },
    title, wide("Keys and their effects", plainTable(["Key", "Effect"], [...EVERYWHERE, ...more])),
    button("Close", () => dialog.close(), { class: "primary" }));
  document.body.append(dialog);
  addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, textarea, select");
    if (event.key !== "?" || isTyping || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    if (!dialog.open) dialog.showModal();
  });
  return button("Keys", () => dialog.showModal());
}
