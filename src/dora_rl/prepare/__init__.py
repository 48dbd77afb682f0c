"""A recipe becomes a checked plan: everything about a run that can be known before its first process starts.

    whoever wants a run                  the preparing worker, with torch and the user's code
    Preparation.plan    ── PlanRun ──>   RunPlanner: model, rows, rewards, placement, memory, disk
                        <── Planned ──
    Preparation.finish  ── WriteInputs ──>  prompts, tokenizer, the model after a warm start

preparation       what is seen of it from outside   worker          the process that does it
messages          what the two say                  run_plan        what comes of it, as a record
planner           the whole of a plan, warm start   function_checks rewards and losses tried out
completion        the recipe, nothing left out      model_directory what is trained, as a directory
device_placement  who runs where                    run_memory      who needs how much, and if there is room
trainer_memory    what the trainer needs            disk            what will be written
sampling_inputs   what sampling from a model begins with
machine           what there is, and what of it is free
"""
