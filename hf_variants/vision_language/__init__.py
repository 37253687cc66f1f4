"""Vision-language training: a task made of hand-written digits and questions, its stages, and the report.

    digits   the images          questions   the grammar       examples   images, question, answer by number
    words    a tokenizer         specs       the recipe's keys

Notable here: everything comes with the installed packages, and every example is a function of a seed.
"""
