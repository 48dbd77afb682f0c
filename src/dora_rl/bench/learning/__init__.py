"""What staleness costs and what it buys, in live runs of one recipe.

live_trials       runs of given recipes, several at a time, each in a process of its own
staleness_grid    losses x forced staleness x seeds: how each learns, by step and by second
grid_views        the grid as a table and a picture
target_sweep      fixed R beside the R that control finds: seconds a step against staleness
"""
