"""Reinforcement learning by trl: rollouts by `generate`, a reference model, then the update."""

import tempfile

import planted
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def reward(completions, **_):
    return [float(len(text) % 5) for text in completions]


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    per_device_train_batch_size=4,
    num_generations=4,
    use_cpu=True,
    bf16=False,
    fp16=False,
    report_to=[],
    save_strategy="no",
    max_completion_length=4,
    beta=0.04,
    gradient_checkpointing=False,
)
GRPOTrainer(
    model=planted.saved_llama(),
    reward_funcs=reward,
    args=config,
    processing_class=planted.tokenizer(),
    train_dataset=Dataset.from_dict({"prompt": planted.sentences()}),
).train()
