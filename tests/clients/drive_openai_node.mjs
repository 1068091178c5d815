// Drives openai-node; see test_clients.py for what comes in and goes out.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const given = JSON.parse(readFileSync(0, "utf-8"));

function options(test) {
  const found = { model: test.model ?? given.model, max_tokens: test.max_tokens };
  for (const name of ["messages", "stop", "temperature"])
    if (name in test) found[name] = test[name];
  if (test.has_tools) found.tools = [{ type: "function", function: given.tool }];
  if (test.choice) Object.assign(found, { tool_choice: test.choice, parallel_tool_calls: false });
  if (test.text !== null) found.forced_token_ids = test.ids;
  return found;
}

function outcome(done) {
  const [choice] = done.choices;
  if (!(done.usage.completion_tokens > 0)) throw new Error("no usage");
  const calls = (choice.message.tool_calls ?? []).map((call) => [
    call.function.name,
    JSON.parse(call.function.arguments),
  ]);
  return {
    text: choice.message.content ?? "",
    reasoning: choice.message.reasoning_content ?? null,
    calls,
    names: calls.map(([name]) => name),
    end: choice.finish_reason,
  };
}

async function streamed(chats, test) {
  const stream = chats.stream({ ...options(test), stream_options: { include_usage: true } });
  // The client keeps the last piece alone of a field that it does not know.
  let reasoning = null;
  stream.on("chunk", (chunk) => {
    const piece = chunk.choices[0]?.delta?.reasoning_content;
    if (piece) reasoning = (reasoning ?? "") + piece;
  });
  return { ...outcome(await stream.finalChatCompletion()), reasoning };
}

async function runTools(client, test) {
  const called = [];
  const runner = client.chat.completions.runTools({
    ...options(test),
    tools: [
      {
        type: "function",
        function: {
          ...given.tool,
          parse: JSON.parse,
          function: (found) => called.push(found.city) && "sun",
        },
      },
    ],
    tool_choice: { type: "function", function: { name: given.tool.name } },
  });
  await runner.done();
  return { names: called.map(() => given.tool.name) };
}

async function run(client, test) {
  const chats = client.chat.completions;
  switch (test.kind) {
    case "chat":
      if (!test.is_stream) return outcome(await chats.create(options(test)));
      return streamed(chats, test);
    case "schema": {
      const schema = { name: "person", schema: given.person, strict: true };
      const done = await chats.create({
        ...options(test),
        response_format: { type: "json_schema", json_schema: schema },
      });
      const person = JSON.parse(done.choices[0].message.content);
      return { is_person: Object.keys(person).sort().join() === "age,name" };
    }
    case "leaves": {
      const stream = await chats.create({ ...options(test), stream: true });
      for await (const _ of stream) break;
      stream.controller.abort();
      return { has_left: true };
    }
    case "models": {
      const ids = [];
      for await (const model of client.models.list()) ids.push(model.id);
      return { has_model: ids.includes(given.model) };
    }
    case "completion": {
      const done = await client.completions.create({
        model: given.model,
        prompt: test.prompt,
        max_tokens: 20,
        echo: true,
        forced_token_ids: test.ids,
      });
      return { text: done.choices[0].text, end: done.choices[0].finish_reason };
    }
    case "response": {
      const asked = {
        model: given.model,
        input: "Hi",
        max_output_tokens: test.max_tokens,
        forced_token_ids: test.ids,
      };
      if (!test.is_stream) return { text: (await client.responses.create(asked)).output_text };
      const done = await client.responses.stream(asked).finalResponse();
      return { text: done.output_text };
    }
    case "embedding": {
      const asked = { model: given.model, input: test.inputs };
      const { data } = await client.embeddings.create(asked);
      const lengths = data.map((item) => Math.hypot(...item.embedding));
      return { count: data.length, is_unit: lengths.every((x) => Math.abs(x - 1) < 1e-3) };
    }
    case "run_tools":
      return runTools(client, test);
    default:
      return null;
  }
}

const found = {};
for (const [name, test] of Object.entries(given.scenarios)) {
  const client = new OpenAI({
    baseURL: `${given.url}/v1`,
    apiKey: test.key ?? given.key,
    maxRetries: 0,
    timeout: 300000,
  });
  try {
    found[name] = await run(client, test);
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    found[name] = { status: error.status };
  }
}
process.stdout.write(JSON.stringify(found));
