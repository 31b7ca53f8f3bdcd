"""Hugging Face's Trainer logs every step, evaluates and writes checkpoints; from one step on a weight is NaN.

train_hf_logged.py FOLDER [STEPS [NAN_AT]]
"""

import sys

import planted
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

folder, steps, nan_at = sys.argv[1], *(int(word) for word in [*sys.argv[2:], 30, -1][:2])
data = [dict(input_ids=ids, labels=ids) for ids in torch.randint(3, 64, (32, 12))]


class Poison(TrainerCallback):
    def on_step_begin(self, arguments, state, control, model, **rest):
        if state.global_step == nan_at - 1:
            next(model.parameters()).data[5] = float("nan")


arguments = TrainingArguments(
    output_dir=folder,
    max_steps=steps,
    per_device_train_batch_size=4,
    use_cpu=True,
    report_to=[],
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=7,
    save_steps=10,
)
trainer = Trainer(model=planted.llama(), args=arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[Poison()])
trainer.train()
trainer.save_state()
