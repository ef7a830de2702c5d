"""Score what comes in: `python -m worker.reward_model --model DIR`, a line `{"messages": […]}` a conversation; for each
a line `{"score": …}` or `{"error": "…"}` goes out, in order.
"""

import argparse
import json
import sys
from pathlib import Path

from worker.reward_model.scoring import RewardModel


def main() -> int:
    """Score all lines, then end."""
    parser = argparse.ArgumentParser(prog="worker.reward_model", description="Score conversations.")
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--max-tokens", type=int, default=2048, help="of a conversation; its beginning is left out")
    options = parser.parse_args()
    model = RewardModel(options.model, max_tokens=options.max_tokens)
    for line in sys.stdin:
        if line.strip():
            sys.stdout.write(json.dumps(model.answer(json.loads(line)["messages"])) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
