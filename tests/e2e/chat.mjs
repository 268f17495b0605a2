// Holds one chat with the unmodified client: `node chat.mjs BASE_URL JSON_OF_MESSAGES MAX_TOKENS`.
// Prints one line of JSON per turn: { response, text }.
import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

const [baseURL, messages, maxOutputTokens] = process.argv.slice(2);
const socket = new ResponsesWS(new OpenAI({ apiKey: 'unused', baseURL }));
const waiting = JSON.parse(messages);
let text = '';

function next(previous) {
  const input = waiting.shift();
  if (input === undefined) {
    socket.close();
    return;
  }
  text = '';
  socket.send({
    type: 'response.create',
    model: 'smollm2-135m-instruct',
    input,
    temperature: 0,
    max_output_tokens: Number(maxOutputTokens),
    ...(previous ? { previous_response_id: previous } : {}),
  });
}

function finish(event) {
  console.log(JSON.stringify({ response: event.response, text }));
  next(event.response.id);
}

socket.on('response.output_text.delta', (event) => { text += event.delta; });
socket.on('response.completed', finish);
socket.on('response.incomplete', finish);
socket.on('response.failed', finish);
socket.on('error', (error) => {
  console.error(error);
  process.exit(1);
});
next(null);
