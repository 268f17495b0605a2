// Requests to the server that served this page, with the key of this tab.

const ROOT = new URL("..", import.meta.url);
const KEY = "sessiond.key";
const WAIT_MS = 10_000;

/** The server refused a request: its `status`, `code` and message. */
export class Refused extends Error {
  constructor(status, { code = null, message = `the server answered ${status}` } = {}) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The server did not answer. */
export class Away extends Error {}

export const storedKey = () => sessionStorage.getItem(KEY);
export const storeKey = (key) => sessionStorage.setItem(KEY, key);
export const forgetKey = () => sessionStorage.removeItem(KEY);

export const get = async (path) => (await answer("GET", path)).json();
export const getText = async (path) => (await answer("GET", path)).text();
export const send = async (method, path, body) => (await answer(method, path, body)).json();

/** URL of the socket, and the subprotocols that replace the header in a browser. */
export function socketAddress(path) {
  const url = new URL(path, ROOT);
  url.protocol = url.protocol.replace("http", "ws");
  const key = storedKey();
  return [url, key ? ["responses", `openai-insecure-api-key.${key}`] : ["responses"]];
}

async function answer(method, path, body) {
  const headers = {};
  const key = storedKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, ROOT), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.timeout(WAIT_MS),
    });
  } catch (error) {
    throw new Away(error.message);
  }
  if (response.ok) return response;
  throw await refusal(response);
}

async function refusal(response) {
  try {
    const body = await response.json();
    return new Refused(response.status, body.error ?? { message: body.status?.replaceAll("_", " ") });
  } catch {
    return response.status >= 502 ? new Away(response.statusText) : new Refused(response.status);
  }
}
