"""Scores choices with vLLM: one request of one token for each place in the tree of their tokens. Does not import vLLM.

At each place vLLM is asked for the log probabilities of just the tokens that go on there. All these requests share the
document's prompt: it is computed once, and what each adds, the tokens of a choice and the rest of a block of the prefix
cache, is small. Asking for the log probabilities of the prompt itself (`prompt_logprobs`) would compute it for each
choice anew, as vLLM does not use its cache there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.scoring import Node, Scoring, decide_label, join_logprobs, list_nodes, normalise
from bulkinfer.engines.vllm_arguments import check_logprobs_mode
from bulkinfer.engines.vllm_reading import read_durations
from bulkinfer.errors import JobError
from bulkinfer.records import Completion, FailureCode, FinishReason, Message, Rejection

CHOSEN_LOGPROBS = "logprob_token_ids"
"""A sampling parameter that older vLLM does not have."""
MOST_FOLLOWERS = 128
"""Tokens that one request asks for; vLLM takes no more."""
_PRIOR_ID = "prior"


# Any, here and below: vLLM's objects, whose types differ between its versions.
@dataclass(slots=True)
class _Asked:
    """A document in the engine."""

    num_prompt_tokens: int
    outputs: list[Any] = field(default_factory=list)
    logprobs: dict[tuple[int, ...], float] = field(default_factory=dict)
    """Of the last of these tokens, after those before it."""


class ChoiceScorer:
    """Splits documents into requests to `engine`, and joins what comes back.

    `tokenize`: the tokens of a choice. `make_params`: vLLM's sampling parameters of one token, with more of them.
    Raises JobError for choices that their tokens do not tell apart.
    Without `has_chosen_logprobs`, vLLM tells the log probability of the drawn token alone: each token then has a
    request of its own, in which it is the only one allowed.
    """

    def __init__(
        self,
        scoring: Scoring,
        engine: Any,  # noqa: ANN401
        tokenize: Callable[[str], Sequence[int]],
        make_params: Callable[..., Any],
        *,
        has_chosen_logprobs: bool,
    ) -> None:
        self._scoring = scoring
        self._engine = engine
        self._tokens = {choice: tuple(tokenize(choice)) for choice in scoring.choices}
        _check_apart(self._tokens)
        most = MOST_FOLLOWERS if has_chosen_logprobs else 1
        self._nodes: list[Node] = list_nodes(list(self._tokens.values()), most)
        self._make_params = make_params
        self._params = [
            make_params(**{CHOSEN_LOGPROBS: list(node.followers)})
            if has_chosen_logprobs
            else make_params(allowed_token_ids=list(node.followers), logprobs=0)
            for node in self._nodes
        ]
        self._asked: dict[str, _Asked] = {}
        self.prior: dict[str, float] | None = None
        """How probable each choice is without a document."""

    def add(self, document_id: str, prompt: Any, **how: Any) -> None:  # noqa: ANN401
        """Give the engine all requests for one document. `how`: further arguments of vLLM's `add_request`.

        Raises what vLLM raises, and leaves none of them behind.
        """
        token_ids = prompt["prompt_token_ids"]
        self._asked[document_id] = _Asked(len(token_ids))
        try:
            for number, (node, params) in enumerate(zip(self._nodes, self._params, strict=True)):
                part = {**prompt, "prompt_token_ids": [*token_ids, *node.prefix]}
                self._engine.add_request(f"{document_id}/{number}", part, params, **how)
        except BaseException:
            self._engine.abort_request(self.drop([document_id]))
            raise

    def drop(self, document_ids: Sequence[str]) -> list[str]:
        """Forget documents; returns the ids of their requests."""
        for document_id in document_ids:
            del self._asked[document_id]
        numbers = range(len(self._nodes))
        return [f"{document_id}/{number}" for document_id in document_ids for number in numbers]

    def ask_prior(self, prompt: Any) -> None:  # noqa: ANN401
        """Ask for the empty document, and wait for it; documents are calibrated with it from now on."""
        self.add(_PRIOR_ID, prompt)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                self.take(output)
        self.prior = self._normalise(self._asked.pop(_PRIOR_ID))
        if self.prior is None:  # labels would be others than the job asks for, without a word
            raise JobError("task.calibrate: vLLM gives no probability of each choice for an empty document")

    def take(self, output: Any) -> str | None:  # noqa: ANN401
        """Note what came of one request. Returns the document's id once all of its requests are there."""
        document_id, _, number = output.request_id.partition("/")
        asked = self._asked.get(document_id)
        if asked is None:  # dropped meanwhile
            return None
        asked.outputs.append(output)
        node = self._nodes[int(number)]
        found: Mapping[int, Any] = (output.outputs[0].logprobs or ({},))[0]
        asked.logprobs |= {(*node.prefix, token): found[token].logprob for token in node.followers if token in found}
        return document_id if len(asked.outputs) == len(self._nodes) else None

    def finish(self, document_id: str, since_added_s: float) -> Completion | Rejection:
        """The outcome of a document of which `take` has returned the id."""
        asked = self._asked.pop(document_id)
        document_hash = bytes.fromhex(document_id)
        probabilities = self._normalise(asked)
        if probabilities is None:
            message = "vLLM ended a request for the probability of a choice without one"
            return Rejection(document_hash, FailureCode.ENGINE_ERROR, message, asked.num_prompt_tokens)
        verdict = decide_label(self._scoring, probabilities, self.prior)
        durations = [read_durations(output.metrics, since_added_s) for output in asked.outputs]
        queue_s, first_token_s, total_s = zip(*durations, strict=True)
        return Completion(
            document_hash=document_hash,
            text=verdict.label,
            finish_reason=FinishReason.STOP,
            prompt_tokens=asked.num_prompt_tokens,
            cached_tokens=min(output.num_cached_tokens or 0 for output in asked.outputs),
            output_tokens=len(asked.outputs),
            queue_s=min(queue_s),
            first_token_s=min(first_token_s),
            total_s=max(total_s),
            details=verdict.details,
        )

    def _normalise(self, asked: _Asked) -> dict[str, float] | None:
        """None where a log probability is missing."""
        try:
            joint = {choice: join_logprobs(tokens, asked.logprobs) for choice, tokens in self._tokens.items()}
        except KeyError:
            return None
        return normalise(joint)


def _check_apart(tokens: Mapping[str, tuple[int, ...]]) -> None:
    """Some tokenizers fold texts: where the tokens of one choice begin another's, the shorter could only win."""
    in_order = sorted(tokens, key=tokens.__getitem__)
    for first, second in pairwise(in_order):
        if tokens[second][: len(tokens[first])] == tokens[first]:
            same = "the same as" if tokens[first] == tokens[second] else "the beginning of those of"
            raise JobError(
                f"task.choices: the model's tokenizer writes {first!r} in tokens that are {same} {second!r}, so their "
                "probabilities cannot be told apart; rename one"
            )


def create_scorer(
    spec: EngineSpec,
    engine: Any,  # noqa: ANN401
    params_of: Callable[..., Any],
    render: Callable[[Sequence[Message]], Any],
) -> ChoiceScorer | None:
    """For a job whose choices are scored; with the prior, for which an empty document is asked now.

    `params_of` makes vLLM's sampling parameters. Raises JobError for an engine whose numbers are no log probabilities.
    """
    if spec.scoring is None:
        return None
    check_logprobs_mode(engine.model_config)
    one_token = partial(params_of, temperature=0, max_tokens=1)
    tokenizer = engine.renderer.tokenizer
    scorer = ChoiceScorer(
        spec.scoring,
        engine,
        lambda choice: tokenizer.encode(choice, add_special_tokens=False),
        one_token,
        has_chosen_logprobs=hasattr(one_token(), CHOSEN_LOGPROBS),
    )
    if spec.scoring.prior is not None:
        scorer.ask_prior(render(spec.scoring.prior))
    return scorer
