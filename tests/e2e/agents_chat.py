"""A chat by OpenAI's Agents SDK, in an environment of its own.

`agents_chat.py BASE_URL MESSAGES` prints one line of JSON per turn: response id,
reply, input, cached and output tokens.
"""

import asyncio
import json
import sys

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI


async def main(base_url, messages):
    set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(api_key="unused", base_url=base_url)
    agent = Agent(
        name="keeper",
        instructions="You keep a lighthouse.",
        model=OpenAIResponsesModel("smollm2-135m-instruct", client),
        # a reply that a limit cuts is an error to this SDK: end at the first space
        model_settings=ModelSettings(temperature=0, extra_body={"stop": [" "]}),
    )
    previous = None
    for message in messages:
        result = await Runner.run(agent, message, previous_response_id=previous)
        previous = result.last_response_id
        usage = result.raw_responses[-1].usage
        details = usage.input_tokens_details
        counts = [usage.input_tokens, details.cached_tokens, usage.output_tokens]
        print(json.dumps([previous, result.final_output, *counts]))
    await client.close()


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
