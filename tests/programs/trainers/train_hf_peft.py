"""Hugging Face's Trainer on a model with LoRA, two micro-batches an update."""

import tempfile

import planted
import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
model = get_peft_model(planted.llama(), lora)
data = [dict(input_ids=ids, labels=ids) for ids in torch.randint(3, 64, (32, 12))]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
)
Trainer(model=model, args=arguments, train_dataset=data).train()
