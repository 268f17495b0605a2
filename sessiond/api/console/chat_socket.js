// The socket of the chat. Opened with the first message, and again after a loss.

import { socketAddress } from "./api.js";

const WORDS = {
  1006: "the connection was lost",
  1008: "the API key was revoked, or lacks the permission",
  1009: "the message is too long",
  1011: "internal error of the server",
  1012: "the server is stopping or restarting",
  1013: "the server is overloaded, or the page reads too slowly",
};

/** `onEvent(event)` receives the server's events, `onClose(words)` the reason of the end. */
export class ChatSocket {
  #socket = null;

  constructor({ onEvent, onClose }) {
    this.onEvent = onEvent;
    this.onClose = onClose;
  }

  /** Send a frame, over a new socket if there is none. Rejects if none can be opened. */
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
          reject(new Error("the server refused the connection: it is down, is stopping, or does not know the key"));
        }
      };
    });
  }
}
