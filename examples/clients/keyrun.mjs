// A client of the HTTP API of Keyrun for Node 18 and newer, without dependencies.

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

// Numbers beyond 2^53 are BigInt here, and {"$int": "..."} in JSON.
const write = (value) => JSON.stringify(value, (_, each) => (typeof each === "bigint" ? { $int: String(each) } : each));
const read = (text) =>
  JSON.parse(text, (_, each) => (typeof each?.$int === "string" && Object.keys(each).length === 1 ? BigInt(each.$int) : each));

/** An error that the server has answered: `name` is that of the error in Python. */
export class KeyrunError extends Error {
  constructor(problem) {
    super(problem.detail);
    Object.assign(this, problem, { name: problem.error });
  }
}

export class Keyrun {
  constructor(address, token) {
    this.address = address;
    this.token = token;
  }

  #fetch(path, options, headers) {
    const all = { Authorization: `Bearer ${this.token}`, ...headers };
    return fetch(`${this.address}/v1${path}`, { ...options, headers: all });
  }

  /** Send a request, also again: a write has an id, so a repeat changes nothing. */
  async call(method, path, body, { attempts = 20, id = crypto.randomUUID() } = {}) {
    const headers = { "Content-Type": "application/json", "Idempotency-Key": id };
    for (let attempt = 1; ; attempt++) {
      try {
        const answer = await this.#fetch(path, { method, body: body && write(body) }, headers);
        const found = read(await answer.text());
        if (answer.ok) return found;
        if (![429, 503].includes(answer.status) || attempt >= attempts) throw new KeyrunError(found);
        await sleep(Number(answer.headers.get("Retry-After")));
      } catch (error) {
        if (error instanceof KeyrunError || attempt >= attempts) throw error;
        await sleep(Math.min(0.1 * 2 ** attempt, 2)); // no connection
      }
    }
  }

  /** Start a run, and return its id when it is durable. */
  async submit(workflow, input, { key, runId = crypto.randomUUID() }) {
    return (await this.call("POST", "/runs", { workflow, input, key, run_id: runId })).run_id;
  }

  /** Return the result of a run. Throw if it has failed, was cancelled or is quarantined. */
  async result(runId) {
    for (;;) {
      try {
        return (await this.call("GET", `/runs/${runId}/result?wait=30`)).result;
      } catch (error) {
        if (error.name !== "ResultTimeout") throw error;
      }
    }
  }

  /** Yield events. After a lost connection, continue behind the last event. */
  async *events(query = {}, opened = () => {}) {
    const path = `/events?${new URLSearchParams(query)}`;
    const headers = {};
    for (;;) {
      const silence = new AbortController();
      let timer;
      try {
        const answer = await this.#fetch(path, { signal: silence.signal }, headers);
        if (!answer.ok) throw new KeyrunError(read(await answer.text()));
        let text = "";
        for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
          clearTimeout(timer);
          timer = setTimeout(() => silence.abort(), 45_000); // a comment comes every 15 seconds
          const blocks = (text + part).split("\n\n");
          text = blocks.pop();
          for (const block of blocks) {
            const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
            opened();
            if (fields.id) headers["Last-Event-ID"] = fields.id;
            if (fields.data && fields.event !== "end") yield read(fields.data);
          }
        }
      } catch (error) {
        if (error instanceof KeyrunError && error.status !== 503) throw error;
      } finally {
        clearTimeout(timer);
        silence.abort();
      }
      await sleep(0.5);
    }
  }
}
