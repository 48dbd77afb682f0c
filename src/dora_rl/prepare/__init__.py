"""A recipe becomes a checked plan: everything about a run that can be known before its first process starts.

    whoever wants a run                  the preparing worker, with torch and the user's code
    Preparation.plan    ── PlanRun ──>   RunPlanner: model, rows, rewards, placement, memory, disk
                        <── Planned ──
    Preparation.finish  ── WriteInputs ──>  prompts, tokenizer, the model after a warm start

preparation  what is seen of it from outside      worker     the process that does it
messages     what the two say                     plan       what comes of it, as a record
planner      the whole of a plan                  inputs     rows and rewards, read and tokenized once
completion   the recipe, with nothing left out    models     what is trained, as a directory
placement    who runs where                       memory     who needs how much, and whether there is room
trainer_memory  what the trainer needs            disk       what will be written
warm_start   the model before version 0           machine    what there is, and what of it is free
"""
