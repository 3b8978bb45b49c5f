"""The backward kernel (`kernel`), a module for each role of its warps; its protocol (`signals`)."""
