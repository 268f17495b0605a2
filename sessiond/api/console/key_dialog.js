// Asks for a key, once per tab, and determines its role.

import { Away, forgetKey, get, Refused, storedKey, storeKey } from "./api.js";
import { byId, showFault } from "./dom.js";

/** Whether the caller is an admin. Asks until a key is valid. Raises `Away`. */
export async function findRole() {
  let fault = null;
  for (;;) {
    try {
      await get("admin/drain");
      return { isAdmin: true, hasKey: storedKey() !== null };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (error.status === 403 && error.code === "permission_denied") return { isAdmin: false, hasKey: true };
      if (error.status !== 401) throw new Away(error.message);
      fault = storedKey() ? error.message : null;
      forgetKey();
    }
    storeKey(await askForKey(fault));
  }
}

function askForKey(fault) {
  const [dialog, input] = [byId("key-dialog"), byId("key-input")];
  showFault(byId("key-fault"), fault);
  input.value = "";
  dialog.oncancel = (event) => event.preventDefault(); // without a key there is no page to show
  if (!dialog.open) dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      dialog.close();
      resolve(input.value.trim());
      input.value = "";
    };
  });
}
