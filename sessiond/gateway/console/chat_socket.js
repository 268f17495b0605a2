// The socket of the chat. Opened when something is said, and again when it was lost.

import { socketAddress } from "./api.js";

const WORDS = {
  1006: "the connection broke off",
  1008: "the server let this key go: it was revoked, or may not do this",
  1009: "what was sent is too long",
  1011: "a fault of the server",
  1012: "the server stops or restarts",
  1013: "the server is overloaded, or was read too slowly",
};

/** `onEvent(event)` gets what the server says, `onClose(words)` why the socket ended. */
export class ChatSocket {
  #socket = null;

  constructor({ onEvent, onClose }) {
    this.onEvent = onEvent;
    this.onClose = onClose;
  }

  /** Send a frame, over a new socket where there is none. Rejects when none can be had. */
  async send(frame) {
    const socket = await this.#open();
    socket.send(JSON.stringify(frame));
  }

  #open() {
    if (this.#socket?.readyState === WebSocket.OPEN) return this.#socket;
    const socket = new WebSocket(...socketAddress("v1/responses"));
    return new Promise((resolve, reject) => {
      socket.onopen = () => {
        this.#socket = socket;
        resolve(socket);
      };
      socket.onmessage = ({ data }) => this.onEvent(JSON.parse(data));
      socket.onclose = ({ code }) => {
        if (socket === this.#socket) {
          this.#socket = null;
          this.onClose(WORDS[code] ?? `the socket closed (${code})`);
        } else {
          reject(new Error("the server takes no socket now: it is away, stops, or does not know the key"));
        }
      };
    });
  }
}
