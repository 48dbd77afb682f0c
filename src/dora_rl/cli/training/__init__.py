"""What `dora train` does.

running  resolve, plan, run, report                  aside     work with torch, in a process that ends
planning a recipe becomes a plan: everything known   models    what is trained, as a directory
         before the first process starts             inputs    rows and rewards, looked at
sizing   how large an engine may be                  trainer   what the trainer needs
devices  who runs where                              disk      what will be written
plan     the plan as a record                        showing   a plan for people and scripts
"""
