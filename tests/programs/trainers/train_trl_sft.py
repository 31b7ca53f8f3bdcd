"""Supervised fine-tuning by trl, two micro-batches an update."""

import tempfile

import planted
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

config = SFTConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    use_cpu=True,
    bf16=False,
    fp16=False,
    report_to=[],
    save_strategy="no",
    max_length=32,
    gradient_checkpointing=False,
)
SFTTrainer(
    model=planted.llama(), args=config, train_dataset=Dataset.from_dict({"text": planted.sentences()}), processing_class=planted.tokenizer()
).train()
